package wire

import (
	"encoding/binary"
	"fmt"
)

// Fields of a body, by tag. Numbers go on the wire and are never reused; 6 is reserved for the forward list.
const (
	fieldVolume        = 1
	fieldPool          = 2
	fieldFence         = 3
	fieldSource        = 4
	fieldTarget        = 5
	fieldGeneration    = 7
	fieldGenerationID  = 8
	fieldConfiguration = 9
	fieldBitmap        = 10
	fieldRecord        = 11
	fieldKnowledge     = 12
	fieldText          = 13
)

// Fields inside a Knowledge.
const (
	knowIncarnation = 1
	knowSize        = 2 // before the bitmaps, which it limits
	knowAccepted    = 3
	knowPrepared    = 4
	knowHistory     = 5
	knowState       = 6
	knowDoubt       = 7
	knowBase        = 8
	knowMissing     = 9
	knowRecords     = 10
)

// fieldSet has bit n for tag n.
type fieldSet uint32

const (
	fieldHead = 8 // tag 2, flags 2, length 4

	mustUnderstand = 1 // flag: a receiver that does not know the tag refuses the frame
)

// beginField adds the head of a field; endField, given its place, fills in the length of what was added since.
func beginField(dst []byte, tag, flags uint16) (out []byte, at int) {
	dst = binary.LittleEndian.AppendUint16(dst, tag)
	dst = binary.LittleEndian.AppendUint16(dst, flags)
	return append(dst, 0, 0, 0, 0), len(dst)
}

func endField(dst []byte, at int) []byte {
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

func appendBytes(dst []byte, tag uint16, value []byte) []byte {
	dst, at := beginField(dst, tag, mustUnderstand)
	return endField(append(dst, value...), at)
}

func appendNumber(dst []byte, tag uint16, value uint64) []byte {
	dst, at := beginField(dst, tag, mustUnderstand)
	return endField(binary.LittleEndian.AppendUint64(dst, value), at)
}

// fields walks over the fields of a body, or of a Knowledge.
type fields struct {
	rest []byte
	last uint16
}

// next gives one field; wrong says in words why there is none, if there ought to be.
func (f *fields) next() (tag uint16, must bool, value []byte, wrong string) {
	if len(f.rest) < fieldHead {
		return 0, false, nil, "a field is cut off"
	}
	tag = binary.LittleEndian.Uint16(f.rest)
	flags := binary.LittleEndian.Uint16(f.rest[2:])
	length := binary.LittleEndian.Uint32(f.rest[4:])
	switch {
	case tag <= f.last:
		return 0, false, nil, fmt.Sprintf("field %d follows field %d", tag, f.last)
	case flags&^mustUnderstand != 0:
		return 0, false, nil, fmt.Sprintf("field %d has unknown flags %#x", tag, flags)
	case uint64(length) > uint64(len(f.rest)-fieldHead):
		return 0, false, nil, fmt.Sprintf("field %d has %d bytes, the body only %d more", tag, length,
			len(f.rest)-fieldHead)
	}
	value = f.rest[fieldHead:][:length:length]
	f.rest = f.rest[fieldHead+int(length):]
	f.last = tag
	return tag, flags&mustUnderstand != 0, value, ""
}

// exact copies a value of exactly the length of to, or says what is wrong.
func exact(to, value []byte, what string) string {
	if len(value) != len(to) {
		return fmt.Sprintf("%s has %d bytes instead of %d", what, len(value), len(to))
	}
	copy(to, value)
	return ""
}

func number(value []byte, what string) (uint64, string) {
	if len(value) != 8 {
		return 0, fmt.Sprintf("%s has %d bytes instead of 8", what, len(value))
	}
	return binary.LittleEndian.Uint64(value), ""
}
