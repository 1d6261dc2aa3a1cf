// Package codectest holds the shared parts of the tests of several serializers: the
// contract of all serializers, and comparisons with the Python libraries whose formats some
// of them use. Only tests import it.
package codectest
