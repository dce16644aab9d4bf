"""YAML loader of `parse_yaml`, in a module of its own because it is imported on first use."""

from typing import Any

import yaml


class StrictLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Reject aliases."""
        # Ten lines of aliases of aliases can stand for billions of values.
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            line = event.start_mark.line + 1
            raise yaml.YAMLError(f"expected no alias, got *{event.anchor}, line {line}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Reject keys that appear twice."""
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                name = self.construct_object(key_node)
                if name in seen:
                    line = key_node.start_mark.line + 1
                    raise yaml.YAMLError(f"{name!r} appears twice, line {line}")
                seen.add(name)
        return super().construct_mapping(node, deep)
