"""Base class of all callbacks.

Each long-running function takes one callback: `train` a `TrainCallback`, `compare` a
`ComparisonCallback`, `run_claims` a `ClaimsCallback`. The hooks are named as in Lightning and
skorch: `on_train_start`, `on_step_end`, `on_epoch_end`.
"""


class Callback:
    """Hooks shared by all callbacks. Override the hooks you need; the defaults do nothing."""

    def on_message(self, text: str) -> None:
        """Handle one line of text that is addressed to the user."""

    def close(self) -> None:
        """Release the terminal and open files.

        The code that created the callback calls this in a `finally` block, so it also runs after an
        exception. It may run twice.
        """
