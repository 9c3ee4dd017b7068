"""What a network or an update may not do where replicas are batched (torch.func.vmap)."""

_RULES = {
    "control flow": "a branch on a tensor's value (use torch.where)",
    ".item()": "a tensor's value as a Python number (.item(), float)",
    "num_classes": "one_hot without a number of classes",
    "random operation": "a draw from PyTorch's generators (use nn.Dropout or dpmcl.keys)",
    "inplace": "a change in place of a tensor that replicas share (write x = x + y)",
    "dynamic shape": "a result whose shape depends on values (nonzero, x[mask])",
    "generate_vmap_rule": "an autograd.Function without generate_vmap_rule = True",
    "data pointer": ".numpy() and .tolist()",
}
"""What is forbidden, by words of PyTorch's message where it happens."""


def explained(error: BaseException) -> str:
    """Return one sentence on what batching forbids, to add to an exception of a user's code.

    Args:
        error: What a network or an update raised under the batched engine. Where its message is
            one of PyTorch's on batching, the sentence names what was done, else all that is
            forbidden.

    >>> explained(RuntimeError("vmap: It looks like you're calling .item() on a Tensor."))
    "Batching forbids a tensor's value as a Python number (.item(), float); leave it out, or use \
engine = 'looped' (--engine looped)."
    """
    done = [rule for words, rule in _RULES.items() if words in str(error)] or list(_RULES.values())
    return (
        f"Batching forbids {', '.join(done)}; leave it out, or use engine = 'looped' "
        "(--engine looped)."
    )
