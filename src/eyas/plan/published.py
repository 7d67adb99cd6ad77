"""A verifier's facts without a checkpoint: what its YAML says of the published model. Enough for sizes, not for training."""

from eyas.errors import EyasError
from eyas.verifier.facts import Arithmetic, VerifierFacts
from eyas.verifier.schema import NormKind, Target, VerifierConfig
from eyas.verifier.tensors import StoredTensor


def published_facts(verifier: VerifierConfig) -> VerifierFacts:
    """The facts by which the plan of a verifier that isn't here is made.

    Raises:
        EyasError: the YAML doesn't say how large the published model is.
    """
    sizes = vars(verifier.published)
    unknown = [f"verifier.published.{key}" for key, value in sizes.items() if value is None]
    if unknown:
        raise EyasError(
            f"verifier {verifier.name} has no verifier.path, and its YAML doesn't say {', '.join(unknown)}: set one of the two"
        )
    hidden_size, vocab_size = sizes["hidden_size"], sizes["vocab_size"]
    kind = verifier.norm.kind if verifier.target is Target.pre_norm else NormKind.none

    def stored(keys: list[str], *shape: int) -> StoredTensor:
        return StoredTensor(key=keys[0] if keys else "unknown", shape=shape)

    embedding = stored(verifier.keys.embedding, vocab_size, hidden_size)
    return VerifierFacts(
        **sizes,
        usable_vocab_size=None,
        embedding=embedding,
        norm=stored(verifier.keys.norm, hidden_size) if kind.has_weight else None,
        norm_bias=stored(verifier.keys.norm_bias, hidden_size) if kind.has_bias else None,
        head=embedding if verifier.tied else stored(verifier.keys.head, vocab_size, hidden_size),
        head_bias=stored(verifier.keys.head_bias, vocab_size) if verifier.keys.head_bias else None,
        arithmetic=Arithmetic(target=verifier.target, norm=kind, eps=1e-6, cast=verifier.norm.cast),
        embedding_steps=None,
        language_config={},
        warnings=(),
    )
