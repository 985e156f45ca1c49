/* SPDX-License-Identifier: Apache-2.0 */
/* What a tool prints of files, as a terminal may show it: names and texts that somebody else chose
 * neither move the cursor nor reorder letters. A file or pipe gets every byte as it is. */
#ifndef DSI_TOOLS_TERMINAL_H
#define DSI_TOOLS_TERMINAL_H

/* From here on what is printed to standard output passes through base/plain.h, if a terminal reads
 * it. Called once, by output_guard. */
void terminal_plain(void);

#endif
