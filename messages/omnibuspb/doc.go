// Package omnibuspb holds the Go code generated from messages/omnibus.proto.
//
// A message of this package has been decoded and nothing more: no bound has
// been checked and no reference resolved. Package messages turns it into the
// types the bus works with, or into an error. Nothing here is written by hand;
// run `make gen` after a change of the schema.
package omnibuspb
