"""Single questions to an endpoint: is it well, what does it serve; and how a failed one is said in a line."""

import os

import httpx

QUESTION_SECONDS = 10.0
HEALTH_SECONDS = 2.0


def get(url: str, timeout: float = QUESTION_SECONDS) -> httpx.Response:
    """One GET.

    Raises:
        httpx.HTTPError: no answer, or one that isn't 200.
    """
    response = httpx.get(url, timeout=timeout, headers=headers(), trust_env=False)
    return response.raise_for_status()


def headers() -> dict[str, str]:
    """The key that vLLM itself takes from VLLM_API_KEY."""
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def is_healthy(endpoint: str) -> bool:
    """Whether a server answers there and its engine is alive."""
    try:
        get(f"{endpoint}/health", HEALTH_SECONDS)
    except httpx.HTTPError:
        return False
    return True


def served_models(endpoint: str) -> list[str]:
    """The names that an endpoint's models go by (adapters are among them)."""
    return [str(model["id"]) for model in get(f"{endpoint}/v1/models").json()["data"]]


def failure(error: BaseException) -> str:
    """What went wrong with a request, without the library's words around it."""
    match error:
        case httpx.HTTPStatusError():
            return f"HTTP {error.response.status_code}"
        case httpx.ConnectError():
            return "connection refused" if "refused" in str(error) or "All connection" in str(error) else f"{error}"
        case TimeoutError() | httpx.TimeoutException():
            return "no answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def said(response: httpx.Response) -> str:
    """The server's own message in an answer that is an error."""
    try:
        content = response.json()
    except ValueError:
        return response.text.strip()[:300] or "no message"
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:600]
