/* SPDX-License-Identifier: Apache-2.0 */
/* See harness_golden.h. */
#include "op/harness_golden.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int op_golden_next(FILE *file, op_line *line)
{
    static char text[1 << 16];
    int n_words = 0;
    memset(line, 0, sizeof *line);
    if (fgets(text, sizeof text, file) == NULL) {
        return 0;
    }
    for (char *save = NULL, *token = strtok_r(text, " \n", &save); token != NULL;
         token = strtok_r(NULL, " \n", &save)) {
        if (isalpha((unsigned char)token[0]) && n_words < 3) {
            (void)snprintf(line->word[n_words++], sizeof line->word[0], "%s", token);
        } else if (line->n < GOLDEN_MOST) {
            line->x[line->n++] = strtod(token, NULL);
        }
    }
    return 1;
}
