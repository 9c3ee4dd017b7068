"""The error for a member that breaks a promise of its kind."""


def require(kind: str, holds: bool, promise: str) -> None:
    """Check that a member keeps a promise.

    Args:
        kind: Kind of the member, as in "method".
        holds: Whether it keeps the promise.
        promise: The promise, in words that follow "promises that".

    Raises:
        AssertionError: It does not.
    """
    if not holds:
        raise AssertionError(f"A {kind} promises that {promise}.")
