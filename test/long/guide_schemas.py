# SPDX-License-Identifier: Apache-2.0
"""Texts that guides made of random JSON schemas, by the package jsonschema. Usage: guide_schemas.py FILE, lines of guide_random"""
import json
import sys

import jsonschema


def main():
    whole = cut = refused = 0
    for line in open(sys.argv[1], encoding="utf-8"):
        row = json.loads(line)
        if "refused" in row:  # an alternative beside "integer" whose bounds have none between them
            refused += 1
            continue
        assert "text" in row, f"a text is no UTF-8: {row}"
        if not row["ended"]:
            cut += 1
            continue
        validator = jsonschema.validators.validator_for(row["schema"], default=jsonschema.Draft202012Validator)
        validator.check_schema(row["schema"])
        value = json.loads(row["text"])
        errors = list(validator(row["schema"], format_checker=validator.FORMAT_CHECKER).iter_errors(value))
        assert not errors, (row["schema"], row["text"], errors[0].message)
        whole += 1
    assert whole > 9 * cut and refused * 100 < whole, (whole, cut, refused)
    print(f"{whole} texts are valid, {cut} were cut by their length, {refused} schemas were refused")


main()
