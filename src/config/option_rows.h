/* SPDX-License-Identifier: Apache-2.0 */
/* Short names for the rows of the option tables. Only table_*.c include it. */
#ifndef DSI_CONFIG_OPTION_ROWS_H
#define DSI_CONFIG_OPTION_ROWS_H

#include "config/option.h"

/* KEY, DEFAULT, FORCE, DOC, then more members of dsi_option. */
#define B(...)       DSI_ROW(BOOL, __VA_ARGS__)
#define I(...)       DSI_ROW(INT, __VA_ARGS__)
#define R(...)       DSI_ROW(REAL, __VA_ARGS__)
#define T(...)       DSI_ROW(TEXT, __VA_ARGS__)
#define E(...)       DSI_ROW(ENUM, __VA_ARGS__)
#define D(...)       DSI_ROW(DTYPE, __VA_ARGS__)
#define INTS(...)    DSI_ROW(INTS, __VA_ARGS__)
#define REALS(...)   DSI_ROW(REALS, __VA_ARGS__)
#define TEXTS(...)   DSI_ROW(TEXTS, __VA_ARGS__)
#define LIST(...)    DSI_ROW(LIST, __VA_ARGS__)
#define ANY(...)     DSI_ROW(ANY, __VA_ARGS__)
#define OBJECT(...)  DSI_ROW(OBJECT, __VA_ARGS__)
#define S(...)       DSI_ROW(SECTION, __VA_ARGS__)
#define SMAP(...)    DSI_ROW(SECTIONS, __VA_ARGS__)
#define RECORDS(...) DSI_ROW(RECORDS, __VA_ARGS__)
#define VARIANT(...) DSI_ROW(VARIANT, __VA_ARGS__)

#define FIELD(member) DSI_FIELD(member)
#define MIN(v)        DSI_MIN(v)
#define MAX(v)        DSI_MAX(v)
#define WITH(f)       DSI_WITH(f)
#define NOTE(text)    DSI_NOTE(text)

#define NULLABLE DSI_OPT_NULLABLE
#define REQUIRED DSI_OPT_REQUIRED
#define TRAINER  DSI_OPT_TRAINER
#define AUTO     DSI_OPT_AUTO
#define ANY_CASE DSI_OPT_ANY_CASE
#define GROUPS   DSI_OPT_GROUPS
#define ONE_TEXT DSI_OPT_ONE_TEXT
#define ABOVE    DSI_OPT_ABOVE_MIN
#define IGNORED  DSI_OPT_IGNORED
#define SECRET   DSI_OPT_SECRET

#endif
