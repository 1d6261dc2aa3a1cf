// Package codectest holds what the tests of several serializers share: the
// contract of all of them, and the Python libraries whose formats some of them
// speak, run beside them. Only tests import it.
package codectest
