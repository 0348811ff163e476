"""Local joins: a batch goes in, result rows come out; the state lies in a StateStore."""
