"""`python -m scripts.bench`. Publishers' processes import this file again, so it imports nothing for them."""

if __name__ == "__main__":
    from scripts.bench.command import main

    main()
