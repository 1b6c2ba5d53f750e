"""What still differs from Postgres without a word, or is taken though Postgres refuses it: kind by kind, its forms.

The list may only get shorter: a case that is right has to leave it."""

from __future__ import annotations

DIFFERENT = {
    "padded": "= in min max",
    "zoned": "< <column order limit",
    "period": "= =column < <column in max group distinct order limit join in-rows",
    "feel": "< <column min max order limit",
    "coins": "< <column min max order limit",
    "number": "< <column max order limit",
    "place": "< <column max order",
    "address": "< <column in min max order limit",
    "net": "< min order limit",
    "card": "in",
    "document": "= =column < <column in min group distinct order limit join",
    "jsontext": "= =column < <column in min max group distinct order limit join in-rows",
    "anycase": "= =column < <column in group distinct order limit join in-rows",
    "keyed": "= < <column in order limit",
    "couple": "= < <column min max order limit",
    "ints": "< <column min max order limit",
    "numbers": "= =column < <column in min max group distinct order limit join in-rows",
    "own_range": "= =column < <column in min max group distinct order limit join in-rows",
    "ints_list": "max order limit",
    "texts_list": "max order limit",
    "bare_list": "= =column < <column in min max order limit join in-rows",
    "idents_list": "< min max order limit",
    "padded_list": "max order limit",
    "spot": "= =column < <column in min max group distinct order limit join in-rows",
    "lexemes": "= < <column in max order limit",
    "d_counted": "<column min max order limit",
    "d_again": "<column min max order limit",
    "d_priced": "<column min max order limit",
    "d_weighed": "=column <column max group distinct order limit join in-rows",
    "d_coded": "= in min max",
}
