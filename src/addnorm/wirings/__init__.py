"""Wirings, one paper a file, chosen by call string."""

from addnorm.wirings.b2t import B2T
from addnorm.wirings.base import State, Wiring, make_wiring, registry
from addnorm.wirings.post_ln import PostLN
from addnorm.wirings.pre_ln import PreLN

__all__ = ["B2T", "PostLN", "PreLN", "State", "Wiring", "make_wiring", "registry"]
