"""What all settings share: frozen values that know every key."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
MIB = 1 << 20


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
