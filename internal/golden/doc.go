// Package golden compares what tests make with files that were committed, and writes
// those anew with `go test -update`.
//
// The files are for others to read, too: vectors that clients in other languages check
// themselves against, schemas, graphs. Where they say what a format is, a difference
// wants a new version of the format, and not -update.
package golden
