// Package pool hands out a fixed number of places, first come, first served.
//
// Each client has a line of waiters. A place that comes back goes to the first waiter of a line, and the
// lines take turns, so that a client with a thousand waiters does not stand before all others. No
// waiter is overtaken within its line, nor by a later [Pool.TryTake]. A waiter that gives up is granted
// nothing, or has been granted already and keeps that. All methods are safe for concurrent use.
package pool
