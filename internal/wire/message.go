package wire

//go:generate go run ./wiregen

// Message is one message of the protocol: a pointer to one of the structs of this package
// that have a kind.
type Message interface {
	// Kind says which message it is.
	Kind() Kind
	// append writes the fields behind b and room for a header.
	append(b []byte) ([]byte, error)
	// read sets all fields. The bytes may go on behind them.
	read(b []byte) error
}

// notAMessage is the panic for a Message of another package.
const notAMessage = "wire: a message that is not a pointer to a struct of this package"
