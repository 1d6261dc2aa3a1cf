package bundle

// DecodeInOrder decodes maps into python.Dict.
func (b *Bundle) DecodeInOrder() (v any, err error) {
	err = b.decode(&v, nil, true)
	return v, err
}
