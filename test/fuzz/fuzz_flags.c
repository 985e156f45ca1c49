/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of ds_train's command line: a line of the input is a word. */
#include "common/train.h"
#include "fuzz/fuzz_files.h"

enum { WORDS = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = strndup((const char *)data, size);
    char name[] = "ds_train";
    char *words[WORDS + 1] = {name};
    int n = 1;
    fuzz_require(text != NULL, "memory");
    for (char *at = text; n < WORDS && at != NULL;) {
        words[n++] = strsep(&at, "\n");
    }
    train_options options = {0};
    bool help = false;
    for (int i = 1; i < n; ++i) { /* the help goes to the terminal */
        help = help || strncmp(words[i], "--help", 6) == 0 || strcmp(words[i], "-h") == 0;
    }
    if (!help && train_options_parse(fuzz_context(), n, words, &options, &help) >= 0) {
        fuzz_require(options.data.n > 0 &&
                         (options.model != NULL) != (options.model_config != NULL) &&
                         (options.steps > 0) != (options.epochs > 0.0),
                     "flags that must be refused");
        fuzz_require(options.seq_length >= 0 && options.eval_fraction >= 0.0 &&
                         options.eval_fraction < 1.0,
                     "a number out of its bounds");
    }
    train_options_free(&options); /* in any case, as ds_train does */
    free(text);
    return 0;
}
