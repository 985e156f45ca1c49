/* SPDX-License-Identifier: Apache-2.0 */
/* Reading SentencePiece's ModelProto: pieces, the trainer's settings and the normalizer's. See
 * spiece.h. What would change how text is read and is not supported is refused by name.
 */
#include "data/spiece.h"
#include "data/unicode_table.h"
#include "io/protobuf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PIECE_BYTES = 2048 };

static ds_status bad(ds_ctx *ctx, const char *path, const char *what)
{
    return ds_fail(ctx, DS_ERR_FORMAT,
                   "%s: no model of SentencePiece (files of tiktoken are not read): %s", path,
                   what);
}

/* ---- messages ---- */

static void take_text(const dsi_proto_field *field, dsi_spiece_text *text)
{
    if (field->wire == DSI_WIRE_BYTES) {
        *text = (dsi_spiece_text){field->data, field->n};
    }
}

static void take_whole(const dsi_proto_field *field, int64_t *value)
{
    if (field->wire == DSI_WIRE_WHOLE) {
        *value = (int32_t)(uint32_t)field->whole;
    }
}

static void take_flag(const dsi_proto_field *field, bool *value)
{
    if (field->wire == DSI_WIRE_WHOLE) {
        *value = field->whole != 0;
    }
}

static bool read_piece(const dsi_proto_field *message, dsi_spiece_piece *piece)
{
    dsi_proto_reader r = dsi_proto_reader_make(message->data, message->n);
    dsi_proto_field field;
    bool malformed = false;
    int64_t kind = DSI_PIECE_NORMAL;
    *piece = (dsi_spiece_piece){.text = {"", 0}};
    while (dsi_proto_next(&r, &field, &malformed)) {
        const uint32_t bits = (uint32_t)field.whole;
        switch (field.number) {
        case 1:
            take_text(&field, &piece->text);
            break;
        case 2:
            if (field.wire == DSI_WIRE_32) {
                memcpy(&piece->score, &bits, sizeof piece->score);
            }
            break;
        case 3:
            take_whole(&field, &kind);
            break;
        default:
            break;
        }
    }
    piece->kind = kind >= DSI_PIECE_NORMAL && kind <= DSI_PIECE_BYTE ? (dsi_spiece_kind)kind : 0;
    return !malformed;
}

static bool read_trainer(const dsi_proto_field *message, dsi_spiece *s)
{
    dsi_proto_reader r = dsi_proto_reader_make(message->data, message->n);
    dsi_proto_field field;
    bool malformed = false;
    while (dsi_proto_next(&r, &field, &malformed)) {
        switch (field.number) {
        case 3:
            take_whole(&field, &s->model_type);
            break;
        case 24:
            take_flag(&field, &s->marks_behind);
            break;
        case 35:
            take_flag(&field, &s->byte_fallback);
            break;
        case 40:
            take_whole(&field, &s->unk_id);
            break;
        case 41:
            take_whole(&field, &s->bos_id);
            break;
        case 42:
            take_whole(&field, &s->eos_id);
            break;
        case 45:
            take_text(&field, &s->unk_piece);
            break;
        case 46:
            take_text(&field, &s->bos_piece);
            break;
        case 47:
            take_text(&field, &s->eos_piece);
            break;
        default:
            break;
        }
    }
    return !malformed;
}

static bool read_normalizer(const dsi_proto_field *message, dsi_spiece *s)
{
    dsi_proto_reader r = dsi_proto_reader_make(message->data, message->n);
    dsi_proto_field field;
    bool malformed = false;
    while (dsi_proto_next(&r, &field, &malformed)) {
        switch (field.number) {
        case 2:
            take_text(&field, &s->charsmap);
            break;
        case 3:
            take_flag(&field, &s->add_dummy_prefix);
            break;
        case 4:
            take_flag(&field, &s->remove_extra_whitespaces);
            break;
        case 5:
            take_flag(&field, &s->escape_whitespaces);
            break;
        default:
            break;
        }
    }
    return !malformed;
}

static ds_status push_piece(ds_ctx *ctx, const char *path, dsi_spiece *s, dsi_spiece_piece piece)
{
    if (s->n >= DSI_TOK_MAX_ID) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%s: more than %d pieces", path, DSI_TOK_MAX_ID);
    }
    if (s->n == s->room) {
        const size_t room = s->room > 0 ? 2 * s->room : 1024;
        dsi_spiece_piece *pieces = realloc(s->pieces, room * sizeof *pieces);
        if (pieces == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory for the pieces", path);
        }
        s->pieces = pieces;
        s->room = room;
    }
    s->pieces[s->n++] = piece;
    return DS_OK;
}

static ds_status read_model(ds_ctx *ctx, const char *path, dsi_proto_reader r, dsi_spiece *s)
{
    dsi_proto_field field;
    bool malformed = false;
    while (dsi_proto_next(&r, &field, &malformed)) {
        bool good = true;
        dsi_spiece_piece piece;
        if (field.wire != DSI_WIRE_BYTES) {
            continue;
        }
        if (field.number == 1) {
            good = read_piece(&field, &piece);
            DS_TRY(good ? push_piece(ctx, path, s, piece) : DS_OK);
        } else if (field.number == 2) {
            good = read_trainer(&field, s);
        } else if (field.number == 3) {
            good = read_normalizer(&field, s);
        }
        if (!good) {
            return bad(ctx, path, "a message is cut off or malformed");
        }
    }
    return malformed ? bad(ctx, path, "it is cut off or malformed") : DS_OK;
}

/* ---- whether it holds together ---- */

static bool is_utf8(dsi_spiece_text text)
{
    const unsigned char *p = (const unsigned char *)text.data;
    const unsigned char *end = p + text.n;
    uint32_t cp = 0;
    while (p < end && cp != DSI_UTF8_BAD) {
        p += dsi_utf8_decode(p, end, &cp);
    }
    return cp != DSI_UTF8_BAD;
}

static ds_status check_piece(ds_ctx *ctx, const char *path, const dsi_spiece *s, size_t i)
{
    const dsi_spiece_piece *piece = &s->pieces[i];
    const char *what = piece->text.n == 0        ? "has no text"
                       : !is_utf8(piece->text)   ? "is no UTF-8"
                       : !isfinite(piece->score) ? "has a score that is no number"
                       : piece->kind == 0        ? "is of a kind that does not exist"
                                                 : NULL;
    if (what != NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: piece %zu %s", path, i, what);
    }
    if (piece->text.n > MAX_PIECE_BYTES) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%s: piece %zu has %zu bytes; the limit is %d", path, i,
                       piece->text.n, MAX_PIECE_BYTES);
    }
    if (piece->kind == DSI_PIECE_UNUSED) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: piece %zu is marked as unused, which is not supported", path, i);
    }
    if (piece->kind == DSI_PIECE_UNKNOWN && (int64_t)i != s->unk_id) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "%s: piece %zu is the unknown one, but the trainer's unk_id is %lld", path,
                       i, (long long)s->unk_id);
    }
    return DS_OK;
}

static ds_status check(ds_ctx *ctx, const char *path, const dsi_spiece *s)
{
    if (s->model_type != DSI_SPIECE_UNIGRAM && s->model_type != DSI_SPIECE_BPE) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: models of SentencePiece are read that are Unigram (1) or BPE (2); this "
                       "one's model_type is %lld",
                       path, (long long)s->model_type);
    }
    if (s->marks_behind) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: the trainer's treat_whitespace_as_suffix is not supported", path);
    }
    for (size_t i = 0; i < s->n; ++i) {
        DS_TRY(check_piece(ctx, path, s, i));
    }
    if (s->unk_id < 0 || s->unk_id >= (int64_t)s->n ||
        s->pieces[s->unk_id].kind != DSI_PIECE_UNKNOWN) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: the trainer's unk_id, %lld, is no unknown piece",
                       path, (long long)s->unk_id);
    }
    return is_utf8(s->bos_piece) && is_utf8(s->eos_piece)
               ? DS_OK
               : bad(ctx, path, "the trainer's bos_piece or eos_piece is no UTF-8");
}

ds_status dsi_spiece_read(ds_ctx *ctx, const char *path, const char *data, size_t n,
                          dsi_spiece *spiece_out)
{
    /* the messages' own defaults */
    *spiece_out = (dsi_spiece){.model_type = DSI_SPIECE_UNIGRAM,
                               .bos_id = 1,
                               .eos_id = 2,
                               .unk_piece = {"<unk>", 5},
                               .bos_piece = {"<s>", 3},
                               .eos_piece = {"</s>", 4},
                               .charsmap = {"", 0},
                               .add_dummy_prefix = true,
                               .remove_extra_whitespaces = true,
                               .escape_whitespaces = true};
    DS_TRY(read_model(ctx, path, dsi_proto_reader_make(data, n), spiece_out));
    if (spiece_out->n == 0) {
        return bad(ctx, path, "it has no pieces");
    }
    return check(ctx, path, spiece_out);
}
