package main

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// As much of protobuf as the index of ArrayRecord and a tf.train.Example need.

// field is one field of a message: a number, or bytes.
type field struct {
	tag    uint64
	number uint64
	bytes  []byte
}

type message []field

// parseMessage splits a message into its fields, in their order.
func parseMessage(data []byte) (message, error) {
	var fields message
	for len(data) > 0 {
		key, used := binary.Uvarint(data)
		if used <= 0 {
			return nil, errors.New("a message is cut")
		}
		data = data[used:]
		found := field{tag: key >> 3}
		switch key & 7 {
		case 0:
			if found.number, used = binary.Uvarint(data); used <= 0 {
				return nil, errors.New("a message is cut within a number")
			}
			data = data[used:]
		case 2:
			size, used := binary.Uvarint(data)
			if used <= 0 || size > uint64(len(data)-used) {
				return nil, errors.New("a message is cut within bytes")
			}
			found.bytes = data[used : used+int(size)]
			data = data[used+int(size):]
		default:
			return nil, fmt.Errorf("a field of wire type %d", key&7)
		}
		fields = append(fields, found)
	}
	return fields, nil
}

// number returns the number with a tag; 0 if there is none, as protobuf has it.
func (fields message) number(tag uint64) uint64 {
	for _, field := range fields {
		if field.tag == tag {
			return field.number
		}
	}
	return 0
}

// bytes returns the bytes with a tag; none if there are none.
func (fields message) bytes(tag uint64) []byte {
	for _, field := range fields {
		if field.tag == tag {
			return field.bytes
		}
	}
	return nil
}
