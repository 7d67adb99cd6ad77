"""Eyas: declarative training of EAGLE-3 draft models for any verifier LLM."""
