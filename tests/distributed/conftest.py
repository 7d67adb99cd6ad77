from fake_vllm import captured, fake

__all__ = ["captured", "fake"]
