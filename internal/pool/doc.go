// Package pool is a semaphore with a fixed number of permits and fair queues.
//
// Each client has a line of waiters, first come, first served. A permit that is given back goes to the
// first waiter of a line, and the lines alternate, so that a client with a thousand waiters does not
// delay all other clients. No waiter is overtaken within its line, nor by a later [Pool.TryTake]. A
// waiter that is withdrawn gets no permit, or has got one before and keeps it. All methods are safe for
// concurrent use.
package pool
