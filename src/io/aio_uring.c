/* The io_uring backend. See aio_impl.h. */
#include "io/aio_impl.h"

ds_status dsi_aio_start_uring(dsi_aio *aio)
{
    return ds_fail(aio->ctx, DS_ERR_UNSUPPORTED, "io_uring was not built in");
}

void dsi_aio_free_ring(aio_worker *worker)
{
    (void)worker;
}
