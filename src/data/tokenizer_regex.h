/* SPDX-License-Identifier: Apache-2.0 */
/* A compiled pattern: between tokenizer_regex.c, which makes it, and tokenizer_match.c. */
#ifndef DSI_DATA_TOKENIZER_REGEX_H
#define DSI_DATA_TOKENIZER_REGEX_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer.h"

#include <pcre2.h>

struct dsi_regex {
    pcre2_code *code;
    char *text, *path; /* for messages: the pattern as the file has it, the file */
};

#endif
