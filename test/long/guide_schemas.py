# SPDX-License-Identifier: Apache-2.0
"""Texts that guides made of random JSON schemas, by the package jsonschema. Usage: guide_schemas.py FILE, lines of guide_random"""
import json
import sys

import jsonschema


def main():
    whole = cut = 0
    for line in open(sys.argv[1], encoding="utf-8"):
        row = json.loads(line)
        assert "text" in row, f"a schema was refused, or a text is no UTF-8: {row}"
        if not row["ended"]:
            cut += 1
            continue
        validator = jsonschema.validators.validator_for(row["schema"], default=jsonschema.Draft202012Validator)
        validator.check_schema(row["schema"])
        value = json.loads(row["text"])
        errors = list(validator(row["schema"], format_checker=validator.FORMAT_CHECKER).iter_errors(value))
        assert not errors, (row["schema"], row["text"], errors[0].message)
        whole += 1
    assert whole > 9 * cut, (whole, cut)
    print(f"{whole} texts are valid, {cut} were cut by their length")


main()
