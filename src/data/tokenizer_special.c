/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens that a folder's small files name, added as transformers adds them; bos, eos, pad, unk.
 *
 * Called once while a folder is opened, behind the components and before the tables are built. The
 * order matters, since a token that is new takes the next id: those of the table of added tokens by
 * their index, then the named ones (bos, eos, unk, sep, pad, cls, mask, then names of the folder's
 * own), then the list of further ones.
 */
#include "data/tokenizer_special.h"
#include "data/tokenizer_load.h"

#include "data/tokenizer_said.h"
#include <stdlib.h>
#include <string.h>

/* ---- adding ---- */

static bool same_properties(const dsi_added_token *a, const dsi_added_token *b)
{
    return a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
           a->normalized == b->normalized && a->special == b->special;
}

static int by_index(const void *a, const void *b)
{
    const dsi_said *x = a;
    const dsi_said *y = b;
    return x->index != y->index ? (x->index < y->index ? -1 : 1)
           : x->turn < y->turn  ? -1
                                : x->turn > y->turn;
}

/* Puts a token on the list unless it is there: among the added ones or the table's new ones by its
 * text, among those that other names put here by all it says. */
static ds_status want(dsi_said_reader *r, size_t n_table, const dsi_said *g)
{
    if (dsi_tokens_find(r->tok, g->token.content, g->token.n_content) != DSI_NO_ID) {
        return DS_OK;
    }
    for (size_t i = 0; i < r->to_add.n; ++i) {
        const dsi_said *other = &r->to_add.data[i];
        const dsi_added_token a = dsi_said_whole(other);
        const dsi_added_token b = dsi_said_whole(g);
        if (dsi_said_same_text(other, g) &&
            (i < n_table || (other->plain == g->plain && same_properties(&a, &b)))) {
            return DS_OK;
        }
    }
    return dsi_said_push(r, &r->to_add, *g);
}

static ds_status add_all(dsi_said_reader *r)
{
    if (r->table.n > 0) {
        qsort(r->table.data, r->table.n, sizeof *r->table.data, by_index);
    }
    for (size_t i = 0; i < r->table.n; ++i) {
        if (i + 1 == r->table.n || r->table.data[i].index != r->table.data[i + 1].index) {
            DS_TRY(dsi_said_push(r, &r->to_add, r->table.data[i]));
            dsi_said *added = &r->to_add.data[r->to_add.n - 1];
            if (r->files->raw_table) {
                added->token.normalized = false;
                added->says_normalized = true;
            }
        }
    }
    const size_t n_table = r->to_add.n;
    for (size_t i = 0; i < r->named.n; ++i) {
        DS_TRY(want(r, n_table, &r->named.data[i]));
    }
    for (size_t i = 0; i < r->further.n; ++i) {
        DS_TRY(want(r, n_table, &r->further.data[i]));
    }
    dsi_tokens_begin(r->tok);
    for (size_t i = 0; i < r->to_add.n; ++i) {
        dsi_said *g = &r->to_add.data[i];
        for (size_t k = 0; !g->plain && k < r->named.n; ++k) {
            g->token.special = g->token.special || dsi_said_same_text(&r->named.data[k], g);
        }
        const dsi_added_token token = dsi_said_whole(g);
        DS_TRY(dsi_tokens_add(r->tok, r->files->folder, &token));
    }
    return DS_OK;
}

/* Qwen2's class adds all that is special once more, with plain properties. */
static ds_status add_again(dsi_said_reader *r)
{
    dsi_tokens_begin(r->tok);
    for (size_t i = 0; i < r->named.n + r->further.n; ++i) {
        dsi_said g = i < r->named.n ? r->named.data[i] : r->further.data[i - r->named.n];
        const dsi_added_token token = {
            .content = g.token.content, .n_content = g.token.n_content, .special = true};
        DS_TRY(dsi_tokens_add(r->tok, r->files->folder, &token));
    }
    return DS_OK;
}

/* ---- bos, eos, pad, unk ---- */

/* BERT's and RoBERTa's classes: cls and sep stand around the text; BERT's named unknown token is
 * the model's. */
static ds_status frame_of_bert(dsi_said_reader *r, const int64_t *ids)
{
    enum { SEP = 3, CLS = 5 };
    static const uint32_t needed[] = {DSI_SAID_UNK, SEP, CLS};
    ds_tokenizer *tok = r->tok;
    const bool bert = r->files->kind == DSI_CLASS_BERT;
    for (size_t i = bert ? 0 : 1; i < sizeof needed / sizeof *needed; ++i) {
        if (ids[needed[i]] < 0) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s: \"%s\" names no token, which the class %s needs", r->files->folder,
                           dsi_said_names[needed[i]], bert ? "BertTokenizer" : "RobertaTokenizer");
        }
    }
    if (bert) {
        const dsi_said *unk = &r->found[DSI_SAID_UNK];
        tok->unk_id = dsi_vocab_find(&tok->vocab, unk->token.content, unk->token.n_content);
        if (tok->unk_id == DSI_NO_ID) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s: \"unk_token\": \"%.60s\" is not in the vocabulary of WordPiece",
                           r->files->folder, unk->token.content);
        }
    }
    uint32_t *around = dsi_arena_array(tok->arena, 2, sizeof *around);
    if (around == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
    }
    around[0] = (uint32_t)ids[CLS];
    around[1] = (uint32_t)ids[SEP];
    tok->template_pieces[0] = (dsi_template_piece){.ids = around, .n_ids = 1};
    tok->template_pieces[1] = (dsi_template_piece){.sequence = true};
    tok->template_pieces[2] = (dsi_template_piece){.ids = around + 1, .n_ids = 1};
    tok->n_template = 3;
    return dsi_tokenizer_pair_of_bert(tok, around, bert ? 1 : 0);
}

/* T5's class: eos stands behind the text. */
static ds_status frame_of_t5(dsi_said_reader *r, int64_t eos)
{
    ds_tokenizer *tok = r->tok;
    uint32_t *behind = dsi_arena_array(tok->arena, 1, sizeof *behind);
    if (eos < 0) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: \"eos_token\" names no token, which the class T5Tokenizer needs",
                       r->files->folder);
    }
    if (behind == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
    }
    behind[0] = (uint32_t)eos;
    tok->template_pieces[0] = (dsi_template_piece){.sequence = true};
    tok->template_pieces[1] = (dsi_template_piece){.ids = behind, .n_ids = 1};
    tok->n_template = 2;
    tok->pair_pieces[0] = tok->template_pieces[0];
    tok->pair_pieces[1] = tok->pair_pieces[3] = tok->template_pieces[1];
    tok->pair_pieces[2] = (dsi_template_piece){.sequence = true, .second = true};
    tok->n_pair = 4;
    return DS_OK;
}

/* T5's class has "extra_ids" (100) tokens for gaps by itself, where tokenizer_config.json has no
 * list; they follow what special_tokens_map.json has. */
static ds_status add_gaps(dsi_said_reader *r)
{
    const json_t *most = json_object_get(r->members, "extra_ids");
    const json_int_t n = most == NULL ? 100 : json_is_integer(most) ? json_integer_value(most) : -1;
    if (n < 0 || n > DSI_TOK_MAX_ID) {
        return dsi_said_wrong(r, "tokenizer_config.json", "extra_ids", "a whole number from 0 on");
    }
    if (r->files->spiece && !r->spiece_tokens) {
        return DS_OK;
    }
    if (json_is_array(json_object_get(r->files->config, "extra_special_tokens")) ||
        json_is_array(json_object_get(r->files->config, "additional_special_tokens"))) {
        return DS_OK;
    }
    json_int_t found = 0; /* of special_tokens_map.json */
    for (size_t i = 0; i < r->further.n; ++i) {
        const dsi_added_token *token = &r->further.data[i].token;
        found += memmem(token->content, token->n_content, "<extra_id_", 10) != NULL;
    }
    if (found > 0 && n > 0 && found != n) {
        return dsi_said_wrong(r, "special_tokens_map.json", "additional_special_tokens",
                              "a list of none or of all tokens that \"extra_ids\" counts");
    }
    if (found > 0) {
        return DS_OK;
    }
    for (json_int_t i = 0; i < n; ++i) {
        char name[32];
        const int length = snprintf(name, sizeof name, "<extra_id_%lld>", (long long)i);
        dsi_said gap = {.plain = true};
        gap.token.content = dsi_arena_strndup(r->tok->arena, name, (size_t)length);
        gap.token.n_content = (uint32_t)length;
        if (gap.token.content == NULL) {
            return ds_fail(r->tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
        }
        DS_TRY(dsi_said_push(r, &r->further, gap));
    }
    return DS_OK;
}

static ds_status note_ids(dsi_said_reader *r)
{
    const dsi_said *found = r->found;
    const bool *is_there = r->is_there;
    ds_tokenizer *tok = r->tok;
    int64_t ids[DSI_SAID_NAMES];
    for (size_t i = 0; i < DSI_SAID_NAMES; ++i) {
        ids[i] = is_there[i]
                     ? ds_tokenizer_id(tok, found[i].token.content, found[i].token.n_content)
                     : -1;
    }
    for (size_t i = 0; i < DSI_SAID_NAMES; ++i) { /* a text that is no token is the unknown one */
        ids[i] = is_there[i] && ids[i] < 0 ? ids[DSI_SAID_UNK] : ids[i];
    }
    if (r->files->kind == DSI_CLASS_BERT || r->files->kind == DSI_CLASS_ROBERTA) {
        DS_TRY(frame_of_bert(r, ids));
    }
    if (r->files->kind == DSI_CLASS_T5) {
        DS_TRY(frame_of_t5(r, ids[DSI_SAID_EOS]));
    }
    tok->bos = ids[DSI_SAID_BOS];
    tok->unk = ids[DSI_SAID_UNK];
    tok->pad = ids[DSI_SAID_PAD];
    tok->mask = ids[DSI_SAID_MASK];
    if (ids[DSI_SAID_EOS] >= 0) {
        tok->eos[0] = (uint32_t)ids[DSI_SAID_EOS];
        tok->n_eos = 1;
    }
    for (size_t i = 0; i < 2; ++i) {
        char **text = i == 0 ? &tok->bos_text : &tok->eos_text;
        if (is_there[i]) {
            *text = dsi_arena_strndup(tok->arena, found[i].token.content, found[i].token.n_content);
            if (*text == NULL) {
                return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
            }
        }
    }
    return DS_OK;
}

static bool is_on(const dsi_said_reader *r, const char *key)
{
    const json_t *value = json_object_get(r->members, key);
    return !dsi_said_is_empty(value) && !(json_is_number(value) && json_number_value(value) == 0.0);
}

/* add_bos_token and add_eos_token count for vocab.json with merges.txt alone. */
static ds_status put_around(dsi_said_reader *r)
{
    ds_tokenizer *tok = r->tok;
    const bool bos = is_on(r, "add_bos_token") && tok->bos >= 0;
    const bool eos = is_on(r, "add_eos_token") && tok->n_eos > 0;
    uint32_t *ids = dsi_arena_array(tok->arena, 2, sizeof *ids);
    if (ids == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
    }
    ids[0] = bos ? (uint32_t)tok->bos : 0;
    ids[1] = tok->eos[0];
    uint32_t n = 0;
    if (bos) {
        tok->template_pieces[n++] = (dsi_template_piece){.ids = ids, .n_ids = 1};
    }
    tok->template_pieces[n++] = (dsi_template_piece){.sequence = true};
    if (eos) {
        tok->template_pieces[n++] = (dsi_template_piece){.ids = ids + 1, .n_ids = 1};
    }
    tok->n_template = n;
    for (uint32_t i = 0; i < n; ++i) { /* around each text */
        tok->pair_pieces[i] = tok->pair_pieces[n + i] = tok->template_pieces[i];
        tok->pair_pieces[n + i].type = 1;
        tok->pair_pieces[n + i].second = tok->template_pieces[i].sequence;
    }
    tok->n_pair = 2 * n;
    return DS_OK;
}

static ds_status apply(dsi_said_reader *r, const json_t *tree)
{
    DS_TRY(dsi_said_read(r, tree));
    DS_TRY(r->files->kind == DSI_CLASS_T5 ? add_gaps(r) : DS_OK);
    DS_TRY(add_all(r));
    if (r->files->kind == DSI_CLASS_QWEN2) {
        DS_TRY(add_again(r));
    }
    DS_TRY(note_ids(r));
    const json_t *split = json_object_get(r->members, "split_special_tokens");
    if (split != NULL && !json_is_boolean(split)) {
        return dsi_said_wrong(r, "tokenizer_config.json", "split_special_tokens", "true or false");
    }
    r->tok->split_special = json_is_true(split);
    r->tok->tidy =
        (r->tok->word_piece || r->tok->scores != NULL) && is_on(r, "clean_up_tokenization_spaces");
    /* the class's own frame stands */
    const bool own = r->files->kind == DSI_CLASS_ROBERTA || r->files->kind == DSI_CLASS_T5;
    return r->files->has_file || own ? DS_OK : put_around(r);
}

ds_status dsi_special_apply(ds_tokenizer *tok, const dsi_folder_files *files, const json_t *tree)
{
    dsi_said_reader r = {.tok = tok, .files = files, .specific = json_object()};
    r.members = files->config != NULL ? json_copy(files->config) : json_object();
    const ds_status status =
        r.members != NULL && r.specific != NULL
            ? apply(&r, tree)
            : ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for the special tokens");
    free(r.table.data);
    free(r.named.data);
    free(r.further.data);
    free(r.to_add.data);
    json_decref(r.members);
    json_decref(r.specific);
    return status;
}

ds_status dsi_special_check(ds_tokenizer *tok, const dsi_folder_files *files)
{
    static const char *const refused[] = {
        "auto_map",
        "fast_tokenizer_files",
        "fix_mistral_regex",
        "gguf_file",
        "init_inputs",
        "merges",
        "model_specific_special_tokens",
        "post_processor",
        "tokenizer_object",
        "tokenizer_padding",
        "tokenizer_truncation",
        "vocab",
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        if (!dsi_said_is_empty(json_object_get(files->config, refused[i]))) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s/tokenizer_config.json: \"%s\" is not supported; without it "
                           "transformers would read text otherwise",
                           files->folder, refused[i]);
        }
    }
    const json_t *most = json_object_get(files->config, "model_max_length");
    if (most != NULL && !json_is_null(most) && !json_is_number(most)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s/tokenizer_config.json: \"model_max_length\" must be a number or null",
                       files->folder);
    }
    if (files->kind == DSI_CLASS_OTHER) {
        return ds_fail(
            tok->ctx, DS_ERR_UNSUPPORTED,
            "%s: transformers reads this folder with the class %.60s, which builds a "
            "tokenizer of its own and is not supported; known: LlamaTokenizer, "
            "Qwen2Tokenizer, GPT2Tokenizer, BertTokenizer, T5Tokenizer, and the general class "
            "(PreTrainedTokenizerFast), which takes tokenizer.json as it stands",
            files->folder, files->class_name);
    }
    return DS_OK;
}
