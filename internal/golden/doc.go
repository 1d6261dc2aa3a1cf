// Package golden compares the output of tests with committed files, and rewrites the
// files with `go test -update`.
//
// The files have other readers too: test vectors for clients in other languages,
// schemas, graphs. If a file defines a format, a difference needs a new version of the
// format, and not -update.
package golden
