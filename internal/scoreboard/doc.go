// Package scoreboard publishes which handlers a process runs, in memory that other processes read.
//
// A scoreboard is an array of entries of 32 bytes. An [Entry] has one writer at a time, and any number of readers,
// also in other processes: no reader needs the writer to be alive, to be scheduled, or to read its socket. So
// a host sees the handler of a process that is stopped, or that hangs with Python's lock. The bus of one process
// keeps its entries on the heap.
//
// Readers do not trust entries: an entry of another process may have any content.
// Times are those of CLOCK_MONOTONIC, which all processes of a machine share.
package scoreboard
