package wire

//go:generate go run ./wiregen

// Message is one message of the protocol: a pointer to a struct of this package that has a kind.
type Message interface {
	// Kind returns the kind of the message.
	Kind() Kind
	// append writes space for a header and the fields after b.
	append(b []byte) ([]byte, error)
	// read sets all fields. Bytes after them are ignored.
	read(b []byte) error
}

// notAMessage is the panic for another implementation of Message.
const notAMessage = "wire: a message that is not a pointer to a struct of this package"
