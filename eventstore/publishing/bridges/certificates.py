"""A server shows a certificate that is not right: that stays so until somebody acts, so no bridge tries again."""

from __future__ import annotations

import re

from tailrace.eventstore.errors import OperatorError

_SAID = re.compile(r"certificate verify failed(?:: ([^(\]\n]+))?")  # by OpenSSL, whoever hands it on


def certificate_error(error: BaseException, server: str, trust: str = "`ca_file`") -> OperatorError | None:
    """What to raise if ``error`` is of a client that did not believe ``server``. ``trust``: the setting that names whom
    it believes."""
    found: BaseException | None = error
    while found is not None:
        if said := _SAID.search(str(found)):
            reason = (said[1] or "it is of an authority that is not known, or of another server").strip()
            return OperatorError(
                f"{server} shows a certificate that is not right: {reason}",
                hint=f"name the authority it is from in {trust}, and the server in `url` as its certificate does",
            )
        found = found.__cause__ or found.__context__
    return None
