/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of digests over the rendezvous, and the first line in which two texts differ. Uses the
 * client's requests. See rendezvous.h. */
#include "comm/rendezvous_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CHUNKS = 64 };

static ds_status put_text(dsi_rdv *rdv, const char *name, const char *text)
{
    char key[DSI_RDV_KEY_BYTES + 64];
    size_t left = strlen(text);
    for (uint32_t i = 0; i < MAX_CHUNKS; ++i) {
        const size_t n = left < DSI_RDV_VALUE_BYTES ? left : DSI_RDV_VALUE_BYTES;
        (void)snprintf(key, sizeof key, "%s/text/%u/%u", name, rdv->rank, i);
        DS_TRY(dsi_rdv_put(rdv, key, text, n));
        text += n;
        left -= n;
        if (n < DSI_RDV_VALUE_BYTES) {
            break;
        }
    }
    return DS_OK;
}

typedef struct line_at {
    const char *begin;
    int n;
} line_at;

static line_at cut_line(const char *text, size_t n)
{
    const char *end = memchr(text, '\n', n);
    const size_t length = end != NULL ? (size_t)(end - text) : n;
    return (line_at){text, (int)(length < 160 ? length : 160)};
}

/* "line 12: "a" and "b"" of the first place where two texts differ. */
static void describe_difference(dsi_rdv *rdv, const char *name, uint32_t usual, const char *mine,
                                double timeout, char *text_out, size_t text_bytes)
{
    char key[DSI_RDV_KEY_BYTES + 64];
    uint32_t line = 1;
    (void)snprintf(text_out, text_bytes,
                   "their texts are equal: the difference is in what the text does not show");
    for (uint32_t i = 0; i < MAX_CHUNKS; ++i) {
        void *chunk;
        size_t n;
        (void)snprintf(key, sizeof key, "%s/text/%u/%u", name, usual, i);
        if (dsi_rdv_get(rdv, key, timeout, &chunk, &n) < 0) {
            (void)snprintf(text_out, text_bytes, "rank %u's text did not come", usual);
            return;
        }
        const char *theirs = chunk;
        size_t at = 0;
        size_t begin = 0;
        while (at < n && mine[at] != '\0' && mine[at] == theirs[at]) {
            if (theirs[at++] == '\n') {
                ++line;
                begin = at;
            }
        }
        if (at < n || (n < DSI_RDV_VALUE_BYTES && mine[at] != '\0')) {
            const line_at a = cut_line(mine + begin, strlen(mine + begin));
            const line_at b = cut_line(theirs + begin, n - begin);
            (void)snprintf(text_out, text_bytes,
                           "line %u: rank %u has \"%.*s\", rank %u has \"%.*s\"", line, rdv->rank,
                           a.n, a.begin, usual, b.n, b.begin);
            free(chunk);
            return;
        }
        free(chunk);
        mine += n;
        if (n < DSI_RDV_VALUE_BYTES) {
            return;
        }
    }
}

/* The two ranks that differ find the line, all learn it. */
static ds_status fail_digest(dsi_rdv *rdv, const char *name, uint32_t usual, uint32_t differs,
                             const char *text, double timeout)
{
    char key[DSI_RDV_KEY_BYTES + 64];
    char found[DSI_RDV_TEXT_BYTES];
    void *line;
    size_t n;
    (void)snprintf(key, sizeof key, "%s/difference", name);
    if (rdv->rank == usual) {
        DS_TRY(put_text(rdv, name, text));
    } else if (rdv->rank == differs) {
        describe_difference(rdv, name, usual, text, timeout, found, sizeof found);
        DS_TRY(dsi_rdv_put(rdv, key, found, strlen(found)));
    }
    DS_TRY(dsi_rdv_get(rdv, key, timeout, &line, &n));
    (void)ds_fail(rdv->ctx, DS_ERR_PEER,
                  "\"%s\" differs: rank %u is the first that does not agree with rank %u; %.*s",
                  name, differs, usual, (int)n, (const char *)line);
    free(line);
    return DS_ERR_PEER;
}

ds_status dsi_rdv_digest(dsi_rdv *rdv, const char *name, uint64_t digest, const char *text,
                         double timeout)
{
    rdv_frame answer;
    uint8_t *copy = NULL;
    if (strlen(name) > DSI_RDV_KEY_BYTES - 40) {
        return ds_fail(rdv->ctx, DS_ERR_ARG, "the name of a digest has at most %d characters",
                       (int)DSI_RDV_KEY_BYTES - 40);
    }
    const ds_status status = rdv_request(rdv, RDV_DIGEST, name, (rdv_frame){.number = digest},
                                         timeout, true, &answer, &copy);
    free(copy);
    DS_TRY(status);
    if (status == DS_IN_PROGRESS) {
        return rdv_fail_missing(rdv, name, timeout);
    }
    if (answer.number == 0) {
        return DS_OK;
    }
    return fail_digest(rdv, name, answer.rank, (uint32_t)(answer.number - 1), text, timeout);
}
