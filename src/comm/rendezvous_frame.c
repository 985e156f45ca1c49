/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the rendezvous. See rendezvous_frame.h. */
#include "comm/rendezvous_frame.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>

static const uint8_t magic[4] = {'D', 'S', 'R', '1'};

/* Offsets in the head. */
enum {
    AT_KIND = 4,
    AT_SERIAL = 5,
    AT_KEY_BYTES = 6,
    AT_VALUE_BYTES = 8,
    AT_RANK = 12,
    AT_NUMBER = 16
};

static void put_le(uint8_t *to, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        to[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t get_le(const uint8_t *from, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; ++i) {
        value |= (uint64_t)from[i] << (8 * i);
    }
    return value;
}

static bool key_is_plain(const uint8_t *key, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (key[i] <= 0x20 || key[i] >= 0x7f) {
            return false;
        }
    }
    return true;
}

ds_status rdv_frame_parse(const uint8_t *data, size_t n, size_t max_value, rdv_frame *frame_out,
                          size_t *used_out)
{
    if (memcmp(data, magic, n < sizeof magic ? n : sizeof magic) != 0) {
        return DS_ERR_FORMAT;
    }
    if (n < RDV_HEAD_BYTES) {
        return DS_IN_PROGRESS;
    }
    const size_t key_bytes = (size_t)get_le(data + AT_KEY_BYTES, 2);
    const size_t value_bytes = (size_t)get_le(data + AT_VALUE_BYTES, 4);
    if (data[AT_KIND] == 0 || data[AT_KIND] >= RDV_KIND_END || key_bytes > DSI_RDV_KEY_BYTES ||
        value_bytes > max_value) {
        return DS_ERR_FORMAT;
    }
    const size_t bytes = RDV_HEAD_BYTES + key_bytes + value_bytes + RDV_CODE_BYTES;
    if (n < bytes) {
        return DS_IN_PROGRESS;
    }
    if (!key_is_plain(data + RDV_HEAD_BYTES, key_bytes)) {
        return DS_ERR_FORMAT;
    }
    *frame_out = (rdv_frame){
        .kind = (rdv_kind)data[AT_KIND],
        .serial = data[AT_SERIAL],
        .rank = (uint32_t)get_le(data + AT_RANK, 4),
        .number = get_le(data + AT_NUMBER, 8),
        .key = (const char *)data + RDV_HEAD_BYTES,
        .key_bytes = key_bytes,
        .value = data + RDV_HEAD_BYTES + key_bytes,
        .value_bytes = value_bytes,
    };
    *used_out = bytes;
    return DS_OK;
}

size_t rdv_frame_bytes(const rdv_frame *frame)
{
    return RDV_HEAD_BYTES + frame->key_bytes + frame->value_bytes + RDV_CODE_BYTES;
}

/* The code of the next frame of the channel; zero until both sides are proved. */
static void make_code(rdv_channel *channel, const uint8_t *data, size_t n, uint8_t *code)
{
    memset(code, 0, RDV_CODE_BYTES);
    if (!channel->proved) {
        return;
    }
    uint8_t prefix[9] = {channel->direction};
    put_le(prefix + 1, channel->n_frames++, 8);
    struct hmac_sha256_ctx hmac;
    hmac_sha256_set_key(&hmac, sizeof channel->key, channel->key);
    hmac_sha256_update(&hmac, sizeof prefix, prefix);
    hmac_sha256_update(&hmac, n, data);
    hmac_sha256_digest(&hmac, RDV_CODE_BYTES, code);
}

void rdv_frame_write(const rdv_frame *frame, rdv_channel *channel, uint8_t *to)
{
    memcpy(to, magic, sizeof magic);
    to[AT_KIND] = (uint8_t)frame->kind;
    to[AT_SERIAL] = frame->serial;
    put_le(to + AT_KEY_BYTES, frame->key_bytes, 2);
    put_le(to + AT_VALUE_BYTES, frame->value_bytes, 4);
    put_le(to + AT_RANK, frame->rank, 4);
    put_le(to + AT_NUMBER, frame->number, 8);
    uint8_t *end = to + RDV_HEAD_BYTES;
    if (frame->key_bytes > 0) {
        memcpy(end, frame->key, frame->key_bytes);
        end += frame->key_bytes;
    }
    if (frame->value_bytes > 0) {
        memcpy(end, frame->value, frame->value_bytes);
        end += frame->value_bytes;
    }
    make_code(channel, to, (size_t)(end - to), end);
}

bool rdv_frame_authentic(rdv_channel *channel, const uint8_t *data, size_t used)
{
    uint8_t code[RDV_CODE_BYTES];
    const size_t n = used - RDV_CODE_BYTES;
    make_code(channel, data, n, code);
    return rdv_same(code, data + n, RDV_CODE_BYTES);
}

void rdv_proof(const char *secret, char letter, const uint8_t *server_nonce,
               const uint8_t *client_nonce, uint32_t rank, uint32_t size, uint8_t *proof_out)
{
    const char *key = secret != NULL ? secret : "";
    uint8_t head[9] = {(uint8_t)letter};
    put_le(head + 1, rank, 4);
    put_le(head + 5, size, 4);
    struct hmac_sha256_ctx hmac;
    hmac_sha256_set_key(&hmac, strlen(key), (const uint8_t *)key);
    hmac_sha256_update(&hmac, sizeof head, head);
    hmac_sha256_update(&hmac, RDV_NONCE_BYTES, server_nonce);
    hmac_sha256_update(&hmac, RDV_NONCE_BYTES, client_nonce);
    hmac_sha256_digest(&hmac, RDV_PROOF_BYTES, proof_out);
}

bool rdv_same(const uint8_t *a, const uint8_t *b, size_t n)
{
    return memeql_sec(a, b, n) != 0;
}
