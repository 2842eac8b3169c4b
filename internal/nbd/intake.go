package nbd

import (
	"errors"
	"io"
)

// intakeBytes is the size of the read buffer: some 2,300 requests without payload, or fifteen 4 KiB writes, in
// one system call. Payloads that do not fit are read straight into their own buffers.
const intakeBytes = 64 << 10

// intake reads a connection through one buffer, and past it for large payloads. One goroutine owns it.
type intake struct {
	conn  io.Reader
	buf   []byte
	start int // buf[start:end] is read and not yet used
	end   int
}

func newIntake(conn io.Reader) *intake { return &intake{conn: conn, buf: make([]byte, intakeBytes)} }

// buffered is what can be used without reading.
func (in *intake) buffered() []byte { return in.buf[in.start:in.end] }

// skip marks n buffered bytes as used.
func (in *intake) skip(n int) { in.start += n }

// fill does one read. io.EOF means that the connection ended between messages.
func (in *intake) fill() error {
	if in.start > 0 {
		// What is left is a part of one header, so the copy is short.
		in.end = copy(in.buf, in.buf[in.start:in.end])
		in.start = 0
	}
	n, err := io.ReadAtLeast(in.conn, in.buf[in.end:], 1)
	in.end += n
	if errors.Is(err, io.EOF) && in.end > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// need returns the next n bytes, at most intakeBytes, reading until they are there. They are valid until the
// next call.
func (in *intake) need(n int) ([]byte, error) {
	for in.end-in.start < n {
		if err := in.fill(); err != nil {
			return nil, err
		}
	}
	b := in.buf[in.start : in.start+n]
	in.start += n
	return b, nil
}

// read fills dst, from the buffer first, then straight from the connection.
func (in *intake) read(dst []byte) error {
	n := copy(dst, in.buffered())
	in.start += n
	if n == len(dst) {
		return nil
	}
	_, err := io.ReadFull(in.conn, dst[n:])
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// drop reads n bytes and forgets them.
func (in *intake) drop(n int) error {
	for {
		have := min(n, in.end-in.start)
		in.start += have
		if n -= have; n == 0 {
			return nil
		}
		in.start, in.end = 0, 0
		if err := in.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
}
