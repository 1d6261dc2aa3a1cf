// Command protogen turns the project's .proto files into Go.
//
// It compiles the files with a compiler written in Go and hands them to
// protoc-gen-go, whose version tools/go.mod pins. No protoc binary is needed,
// and every machine generates the same bytes.
//
//	go -C tools run ./protogen -root .. messages/omnibus.proto
//
// With -check nothing is written: the command exits with status 1 and names
// each file that differs from what it would write.
package main
