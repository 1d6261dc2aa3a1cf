// Package pool hands out a fixed set of things, such as slots and places, first come, first
// served.
//
// What is given back goes to the waiter that has waited longest, and no later one overtakes it. A
// waiter that gives up is granted nothing, or has been granted already and keeps that. All methods
// are safe for concurrent use.
package pool
