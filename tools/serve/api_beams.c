/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search under vLLM's names: use_beam_search, length_penalty, early_stopping; best_of is how
 * many beams, n how many of their texts. See api.h. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

bool api_is_beam(const char *name)
{
    return strcmp(name, "use_beam_search") == 0 || strcmp(name, "length_penalty") == 0 ||
           strcmp(name, "early_stopping") == 0;
}

bool api_read_beam(api_reader *r, const char *name, json_t *v)
{
    if (strcmp(name, "use_beam_search") == 0) {
        return api_boolean(r, name, v, &r->beams);
    }
    r->needs_beams = name;
    if (strcmp(name, "length_penalty") == 0) {
        return api_number(r, name, v, -100.0, 100.0, &r->beam.length_penalty);
    }
    const char *text = json_string_value(v);
    if (!json_is_boolean(v) && (text == NULL || strcmp(text, "never") != 0)) {
        return api_wrong(r, name, "true, false or \"never\"");
    }
    r->beam.end = text != NULL ? DS_BEAM_NEVER : json_is_true(v) ? DS_BEAM_EARLY : DS_BEAM_LIKELY;
    return true;
}

/* What a search has no place for. */
static bool refuse_others(api_reader *r, json_t *body)
{
    static const char *const others[] = {"temperature",
                                         "top_p",
                                         "top_k",
                                         "min_p",
                                         "typical_p",
                                         "mirostat",
                                         "seed",
                                         "presence_penalty",
                                         "frequency_penalty",
                                         "repetition_penalty",
                                         "logit_bias",
                                         "dry_multiplier",
                                         "logprobs",
                                         "prompt_logprobs",
                                         "stop",
                                         "tools",
                                         "response_format",
                                         "structured_outputs"};
    for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
        json_t *v = json_object_get(body, others[i]);
        const bool neutral = v == NULL || json_is_null(v) || json_is_false(v) ||
                             (strcmp(others[i], "temperature") == 0 && json_is_number(v) &&
                              json_number_value(v) == 0.0);
        if (!neutral) {
            return api_unsupported(
                r, others[i],
                "not beside use_beam_search, which takes max_tokens, min_tokens, "
                "stop_token_ids, n, best_of, length_penalty and early_stopping "
                "(temperature 0)");
        }
    }
    return true;
}

/* Without a search: best_of texts are drawn, and the n that are likeliest a token are answered. */
static bool draw_best(api_reader *r)
{
    job *j = r->j;
    if (r->best_of < r->n) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, "best_of", "best_of %lld is below n %lld",
                        (long long)r->best_of, (long long)r->n);
    }
    if (r->best_of > r->f->options->max_choices) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, "best_of",
                        "best_of %lld is above what this server draws (--max_choices %lld)",
                        (long long)r->best_of, (long long)r->f->options->max_choices);
    }
    if (r->best_of > r->n && j->streams) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, "best_of",
                        "best_of above n does not go with stream: which texts are best is known at "
                        "the end");
    }
    j->n_kept = (size_t)r->n;
    r->n = r->best_of;
    j->request.logprobs = true;
    return true;
}

bool api_take_beams(api_reader *r, json_t *body)
{
    job *j = r->j;
    if (!r->beams) {
        return r->needs_beams != NULL ? api_wrong(r, r->needs_beams, "use_beam_search beside it")
               : r->best_of > 0       ? draw_best(r)
                                      : true;
    }
    r->beam.n = r->best_of > 0 ? r->best_of : r->n;
    if (json_object_get(body, "length_penalty") == NULL) {
        r->beam.length_penalty = 1.0;
    }
    if (r->beam.n < 2 || r->beam.n < r->n || r->beam.n > DS_SERVE_MOST_BEAMS ||
        r->beam.n > r->f->options->sizes.max_sequences) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, r->best_of > 0 ? "best_of" : "n",
                        "%lld beams for %lld texts; expected 2 to %lld beams (--max_sequences), at "
                        "least as many as texts",
                        (long long)r->beam.n, (long long)r->n,
                        (long long)r->f->options->sizes.max_sequences);
    }
    ds_beams *beams = malloc(sizeof *beams);
    j->request.beams = beams;
    if (beams == NULL) {
        return api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory");
    }
    *beams = r->beam;
    j->request.sampling = (ds_sampling){0};
    r->has_seed = true;
    return refuse_others(r, body);
}
