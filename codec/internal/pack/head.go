package pack

import "fmt"

// Bounds on the values that a Reader accepts and that a Writer should write.
const (
	// MaxDepth is how deep arrays and maps may be nested. Empty ones do not
	// count.
	MaxDepth = 64
	// MaxValues is how many values there may be: all elements, keys and values
	// of maps, and the containers themselves.
	MaxValues = 1 << 22
)

// Kind is the kind of a value.
type Kind uint8

// The kinds of values.
const (
	Invalid Kind = iota // the one code that is never used
	Nil
	Bool
	Int  // negative, or written as if it could be
	Uint // not negative
	Float
	Str
	Bin
	Array
	Map
	Ext
)

// String returns the name of the kind in messages.
func (k Kind) String() string {
	return [...]string{"nothing", "nil", "a bool", "an integer", "an integer", "a float", "text", "binary data", "an array", "a map", "an extension"}[k]
}

// head is the meaning of the first byte of a value.
type head struct {
	kind     Kind
	lenBytes uint8 // width of the count that follows; 0 if it is fixed
	fixed    uint8 // the count if it is fixed; for numbers, the bytes that follow
}

// heads is indexed by the first byte of a value.
var heads = func() (heads [256]head) {
	set := func(from, to int, kind Kind, lenBytes, fixed uint8) {
		for code := from; code <= to; code++ {
			heads[code] = head{kind, lenBytes, fixed}
		}
	}
	set(0x00, 0x7f, Uint, 0, 0) // positive fixint
	for n := range 16 {
		set(0x80+n, 0x80+n, Map, 0, uint8(n))   // fixmap
		set(0x90+n, 0x90+n, Array, 0, uint8(n)) // fixarray
	}
	for n := range 32 {
		set(0xa0+n, 0xa0+n, Str, 0, uint8(n)) // fixstr
	}
	set(0xc0, 0xc0, Nil, 0, 0)
	set(0xc2, 0xc3, Bool, 0, 0)  // false, true
	set(0xca, 0xca, Float, 0, 4) // float 32
	set(0xcb, 0xcb, Float, 0, 8) // float 64
	for i := range 4 {
		set(0xcc+i, 0xcc+i, Uint, 0, 1<<i) // uint 8 to 64
		set(0xd0+i, 0xd0+i, Int, 0, 1<<i)  // int 8 to 64
	}
	for i := range 3 {
		set(0xc4+i, 0xc4+i, Bin, 1<<i, 0) // bin 8 to 32
		set(0xc7+i, 0xc7+i, Ext, 1<<i, 0) // ext 8 to 32
		set(0xd9+i, 0xd9+i, Str, 1<<i, 0) // str 8 to 32
	}
	for i := range 5 {
		set(0xd4+i, 0xd4+i, Ext, 0, 1<<i) // fixext 1 to 16
	}
	for i := range 2 {
		set(0xdc+i, 0xdc+i, Array, 2<<i, 0) // array 16, 32
		set(0xde+i, 0xde+i, Map, 2<<i, 0)   // map 16, 32
	}
	set(0xe0, 0xff, Int, 0, 0) // negative fixint
	return heads
}()

// vLLM's extension types for pickled objects.
const (
	pickleExt      = 1
	cloudpickleExt = 2
)

// Pickled returns the error for an extension for pickled objects, and nil for all others.
func Pickled(typ int8) error {
	if typ != pickleExt && typ != cloudpickleExt {
		return nil
	}
	return fmt.Errorf("extension %d holds a pickled Python object, which runs code when it is read; send plain data", typ)
}
