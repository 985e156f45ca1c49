/* The small files beside a tokenizer: ids of bos, eos and pad, the chat template; and saving.
 *
 * Called once by ds_tokenizer_open. Order of trust: the spelling in tokenizer_config.json, then
 * special_tokens_map.json, then the ids in config.json; eos ids of generation_config.json and
 * config.json are added, since chat models end a turn by another token than a text.
 */
#include "data/tokenizer.h"
#include "io/json_load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, SIDE_FILE_BYTES = 32 << 20 };

/* Reads a file of the folder; an absent one leaves *json_out NULL. */
static ds_status read_side(ds_tokenizer *tok, const char *folder, const char *name,
                           json_t **json_out)
{
    char path[PATH_BYTES];
    *json_out = NULL;
    const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || n >= PATH_BYTES || access(path, F_OK) != 0) {
        return DS_OK;
    }
    dsi_buf file = dsi_buf_make(SIDE_FILE_BYTES);
    ds_status status = dsi_buf_read_file(tok->ctx, path, &file);
    json_error_t error;
    if (status >= 0) {
        *json_out = dsi_json_parse(dsi_buf_text(&file), file.size, 0, &error);
        if (*json_out == NULL) {
            status = ds_fail(tok->ctx, DS_ERR_FORMAT, "%s:%d:%d: %s", path, error.line,
                             error.column, error.text);
        } else if (!json_is_object(*json_out)) {
            status = ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: must be an object", path);
            json_decref(*json_out);
            *json_out = NULL;
        }
    }
    dsi_buf_free(&file);
    return status;
}

/* A token given as "text" or {"content": "text"}; NULL for none. */
static const char *token_text(const json_t *config, const char *key, size_t *n_out)
{
    const json_t *value = json_object_get(config, key);
    value = json_is_object(value) ? json_object_get(value, "content") : value;
    *n_out = json_string_length(value);
    return json_string_value(value);
}

static void add_eos(ds_tokenizer *tok, int64_t id)
{
    if (id >= 0 && id < tok->n_ids && tok->n_eos < DSI_TOK_MAX_EOS &&
        !ds_tokenizer_is_eos(tok, (uint32_t)id)) {
        tok->eos[tok->n_eos++] = (uint32_t)id;
    }
}

static char *kept_text(ds_tokenizer *tok, const char *text, size_t n)
{
    return dsi_arena_strndup(tok->arena, text, n);
}

/* Ids by their spelling in tokenizer_config.json or special_tokens_map.json. */
static void by_spelling(ds_tokenizer *tok, const json_t *config)
{
    size_t n;
    const char *text = token_text(config, "bos_token", &n);
    if (text != NULL && tok->bos_text == NULL) {
        tok->bos_text = kept_text(tok, text, n);
        tok->bos = ds_tokenizer_id(tok, text, n);
    }
    text = token_text(config, "eos_token", &n);
    if (text != NULL && tok->eos_text == NULL) {
        tok->eos_text = kept_text(tok, text, n);
        tok->n_eos = 0;
        add_eos(tok, ds_tokenizer_id(tok, text, n));
    }
    text = token_text(config, "pad_token", &n);
    if (text != NULL && tok->pad < 0) {
        tok->pad = ds_tokenizer_id(tok, text, n);
    }
}

/* A number of such a file as an id of this vocabulary, -1 when it is none. */
static int64_t id_of(const ds_tokenizer *tok, const json_t *value)
{
    const double id = json_is_number(value) ? json_number_value(value) : -1.0;
    return id >= 0.0 && id < (double)tok->n_ids ? (int64_t)id : -1;
}

/* Ids as numbers in config.json or generation_config.json. */
static void by_id(ds_tokenizer *tok, const json_t *config)
{
    const int64_t bos = id_of(tok, json_object_get(config, "bos_token_id"));
    const int64_t pad = id_of(tok, json_object_get(config, "pad_token_id"));
    tok->bos = tok->bos < 0 ? bos : tok->bos;
    tok->pad = tok->pad < 0 ? pad : tok->pad;
    const json_t *eos = json_object_get(config, "eos_token_id");
    if (json_is_array(eos)) {
        for (size_t i = 0; i < json_array_size(eos); ++i) {
            add_eos(tok, id_of(tok, json_array_get(eos, i)));
        }
    } else {
        add_eos(tok, id_of(tok, eos));
    }
}

/* The template: a text, or a list of named ones of which "default" counts. */
static ds_status template_of(ds_tokenizer *tok, const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    for (size_t i = 0; json_is_array(value) && i < json_array_size(value); ++i) {
        const json_t *one = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            value = json_object_get(one, "template");
        }
    }
    if (json_is_string(value)) {
        tok->chat_template = kept_text(tok, json_string_value(value), json_string_length(value));
        if (tok->chat_template == NULL) {
            return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for a chat template");
        }
    }
    return DS_OK;
}

static ds_status template_file(ds_tokenizer *tok, const char *folder)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    if (n < 0 || n >= PATH_BYTES || access(path, F_OK) != 0) {
        return DS_OK;
    }
    dsi_buf file = dsi_buf_make(SIDE_FILE_BYTES);
    ds_status status = dsi_buf_read_file(tok->ctx, path, &file);
    if (status >= 0) {
        tok->chat_template = kept_text(tok, dsi_buf_text(&file), file.size);
        status = tok->chat_template != NULL
                     ? dsi_tokenizer_note_file(tok, path)
                     : ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for a chat template");
    }
    dsi_buf_free(&file);
    return status;
}

/* vocab.json and merges.txt say nothing of how text is split; tokenizer_config.json does. */
static ds_status gpt2_options(ds_tokenizer *tok, const json_t *config, const char *folder)
{
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    if (class != NULL && strcmp(class, "GPT2Tokenizer") != 0 &&
        strcmp(class, "GPT2TokenizerFast") != 0) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: \"tokenizer_class\": \"%.60s\" cannot be read from vocab.json and "
                       "merges.txt; add its tokenizer.json (transformers' save_pretrained)",
                       folder, class);
    }
    if (json_is_true(json_object_get(config, "add_prefix_space"))) {
        tok->pretoks[1] = tok->pretoks[0];
        tok->pretoks[0] = (dsi_pretok){.kind = DSI_PRETOK_PREFIX_SPACE};
        tok->n_pretoks = 2;
    }
    if (json_is_true(json_object_get(config, "add_bos_token"))) {
        uint32_t *bos = dsi_arena_array(tok->arena, 1, sizeof *bos);
        if (bos == NULL || tok->bos < 0) {
            return ds_fail(tok->ctx, DS_ERR_FORMAT,
                           "%s/tokenizer_config.json: \"add_bos_token\" without a bos token",
                           folder);
        }
        *bos = (uint32_t)tok->bos;
        tok->template_pieces[0] = (dsi_template_piece){.ids = bos, .n_ids = 1};
        tok->template_pieces[1] = (dsi_template_piece){.sequence = true};
        tok->n_template = 2;
    }
    return DS_OK;
}

ds_status dsi_tokenizer_read_side_files(ds_tokenizer *tok, const char *folder)
{
    static const struct {
        const char *name;
        void (*read)(ds_tokenizer *tok, const json_t *config);
        bool copy; /* belongs to the tokenizer rather than to the model */
    } files[] = {{"tokenizer_config.json", by_spelling, true},
                 {"special_tokens_map.json", by_spelling, true},
                 {"generation_config.json", by_id, false},
                 {"config.json", by_id, false}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; ++i) {
        json_t *config;
        DS_TRY(read_side(tok, folder, files[i].name, &config));
        if (config == NULL) {
            continue;
        }
        files[i].read(tok, config);
        ds_status status = i == 0 ? template_of(tok, config) : DS_OK;
        if (status >= 0 && i == 0 && tok->gpt2_files) {
            status = gpt2_options(tok, config, folder);
        }
        json_decref(config);
        char path[PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i].name);
        if (status >= 0 && files[i].copy) {
            status = dsi_tokenizer_note_file(tok, path);
        }
        DS_TRY(status);
    }
    DS_TRY(template_file(tok, folder));
    size_t n;
    const char *piece;
    if (tok->bos_text == NULL && tok->bos >= 0 &&
        (piece = ds_tokenizer_piece(tok, (uint32_t)tok->bos, &n)) != NULL) {
        tok->bos_text = kept_text(tok, piece, n);
    }
    if (tok->eos_text == NULL && tok->n_eos > 0 &&
        (piece = ds_tokenizer_piece(tok, tok->eos[0], &n)) != NULL) {
        tok->eos_text = kept_text(tok, piece, n);
    }
    return DS_OK;
}

/* ---- saving ---- */

static ds_status write_file(ds_ctx *ctx, const char *path, const char *text, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return ds_fail(ctx, DS_ERR_IO, "%s: %s", path, strerror(errno));
    }
    while (n > 0) {
        const ssize_t wrote = write(fd, text, n);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            const int error = errno;
            (void)close(fd);
            return ds_fail(ctx, DS_ERR_IO, "%s: %s", path, strerror(error));
        }
        text += wrote;
        n -= (size_t)wrote;
    }
    if (close(fd) != 0) {
        return ds_fail(ctx, DS_ERR_IO, "%s: %s", path, strerror(errno));
    }
    return DS_OK;
}

/* A tokenizer.json whose ids are the bytes. */
static ds_status save_bytes(ds_ctx *ctx, const ds_tokenizer *tok, const char *folder)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    dsi_buf out = dsi_buf_make(1 << 20);
    const char *byte_level = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                             "\"trim_offsets\": true, \"use_regex\": false}";
    dsi_buf_printf(&out,
                   "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                   "  \"added_tokens\": [],\n  \"normalizer\": null,\n  \"pre_tokenizer\": %s,\n"
                   "  \"post_processor\": null,\n  \"decoder\": %s,\n  \"model\": {\n"
                   "    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
                   "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
                   "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n"
                   "    \"ignore_merges\": false,\n    \"vocab\": {",
                   byte_level, byte_level);
    for (uint32_t i = 0; i < 256; ++i) {
        size_t n;
        const char *piece = ds_tokenizer_piece(tok, i, &n);
        dsi_buf_puts(&out, i == 0 ? "\n      \"" : ",\n      \"");
        dsi_buf_json(&out, piece, n);
        dsi_buf_printf(&out, "\": %u", i);
    }
    dsi_buf_puts(&out, "\n    },\n    \"merges\": []\n  }\n}\n");
    ds_status status = out.failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory to write %s", path)
                                  : write_file(ctx, path, dsi_buf_text(&out), out.size);
    dsi_buf_free(&out);
    if (status >= 0) {
        static const char config[] = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                                     "  \"clean_up_tokenization_spaces\": false\n}\n";
        (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
        status = write_file(ctx, path, config, sizeof config - 1);
    }
    return status;
}

static bool same_file(const char *a, const char *b)
{
    struct stat sa;
    struct stat sb;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}

ds_status ds_tokenizer_save(ds_ctx *ctx, const ds_tokenizer *tok, const char *folder)
{
    if (strlen(folder) > PATH_BYTES - 256) {
        return ds_fail(ctx, DS_ERR_LIMIT, "the path %.100s… is too long", folder);
    }
    if (tok->bytes) {
        return save_bytes(ctx, tok, folder);
    }
    for (uint32_t i = 0; i < tok->n_files; ++i) {
        const char *slash = strrchr(tok->files[i], '/');
        const char *name = slash != NULL ? slash + 1 : tok->files[i];
        const size_t n_name = strlen(name);
        if (i == 0 && strcmp(name, "vocab.json") != 0 && n_name > 5 &&
            strcmp(name + n_name - 5, ".json") == 0) {
            name = "tokenizer.json"; /* whatever it was called */
        }
        char path[PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/%s", folder, name);
        if (same_file(path, tok->files[i])) {
            continue;
        }
        dsi_buf file = dsi_buf_make(DSI_TOK_MAX_FILE);
        ds_status status = dsi_buf_read_file(ctx, tok->files[i], &file);
        if (status >= 0) {
            status = write_file(ctx, path, dsi_buf_text(&file), file.size);
        }
        dsi_buf_free(&file);
        DS_TRY(status);
    }
    return DS_OK;
}
