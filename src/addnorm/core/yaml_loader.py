"""YAML loader of `parse_yaml`, in a module of its own because it is imported on first use."""

import re
from typing import Any

import yaml

FLOAT_WITHOUT_POINT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")
"""Numbers such as 1e-05, which JSON has, and which are texts for the library."""


class StrictLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node; raise `yaml.YAMLError` for an alias."""
        # Ten lines of aliases of aliases can stand for billions of values.
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            line = event.start_mark.line + 1
            raise yaml.YAMLError(f"expected no alias, got *{event.anchor}, line {line}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping; raise `yaml.YAMLError` for a key that appears twice."""
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                name = self.construct_object(key_node)
                if name in seen:
                    line = key_node.start_mark.line + 1
                    raise yaml.YAMLError(f"{name!r} appears twice, line {line}")
                seen.add(name)
        return super().construct_mapping(node, deep)


StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", FLOAT_WITHOUT_POINT, list("-+0123456789")
)
