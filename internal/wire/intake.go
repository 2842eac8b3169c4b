package wire

import (
	"encoding/binary"
	"io"
	"time"

	"samovar/internal/fault"
)

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

func durationOf(stamp uint64) time.Duration { return time.Duration(stamp) }

// fill reads until the buffer holds n bytes, n at most gathered, and as many more as come along. start: they
// start a frame, so that nothing at all is a proper end.
func (d *Decoder) fill(n int, start bool) error {
	if d.from > 0 {
		d.to = copy(d.buf, d.buf[d.from:d.to])
		d.from = 0
	}
	for empty := 0; d.to < n; {
		k, err := d.stream.Read(d.buf[d.to:])
		d.to += k
		switch {
		case d.to >= n:
			// An error that came along comes again.
		case err == io.EOF && d.to == 0 && start:
			return io.EOF
		case err != nil:
			return d.cut(err)
		case k == 0:
			if empty++; empty == 100 {
				return d.cut(io.ErrNoProgress)
			}
		}
	}
	return nil
}

// cut is the error of a stream that failed within a frame.
func (d *Decoder) cut(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fault.Wrap(fault.Unavailable, d.session.op("read frame"), err)
}

// read fills dst from the buffer and then from the stream, past the buffer.
func (d *Decoder) read(dst []byte) error {
	n := copy(dst, d.buf[d.from:d.to])
	d.from += n
	if n == len(dst) {
		return nil
	}
	if _, err := io.ReadFull(d.stream, dst[n:]); err != nil {
		return d.cut(err)
	}
	return nil
}

// take gives the next n bytes, valid until the next read.
func (d *Decoder) take(n int) ([]byte, error) {
	if d.to-d.from < n && n <= gathered {
		if err := d.fill(n, false); err != nil {
			return nil, err
		}
	}
	if d.to-d.from >= n {
		b := d.buf[d.from:][:n]
		d.from += n
		return b, nil
	}
	d.scratch = d.scratch[:0]
	for step := firstStep; len(d.scratch) < n; step *= 2 {
		at := len(d.scratch)
		d.scratch = append(d.scratch, make([]byte, min(step, n-at))...)
		if err := d.read(d.scratch[at:]); err != nil {
			return nil, err
		}
	}
	return d.scratch, nil
}
