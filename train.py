"""python train.py verifier=... data=... trainer=... key=value; without arguments: the demo."""

from eyas.cli.train import main

if __name__ == "__main__":
    main()
