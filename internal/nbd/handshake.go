package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"samovar/internal/block"
	"samovar/internal/fault"
)

const handshakeWriteBytes = 32 << 10 // a long list of exports is sent in pieces of about this size

// handshake is the server's side of a fixed newstyle negotiation. It ends with an open device or an error.
type handshake struct {
	session  *session
	fixed    bool   // the client knows option replies
	noZeroes bool   // the client spares us 124 zeroes
	out      []byte // replies not yet written
	until    time.Time

	export   string
	device   block.Device
	size     uint64
	readOnly bool
}

// negotiate greets and answers options until the client has chosen an export.
func (h *handshake) negotiate() error {
	s := h.session
	h.until = time.Now().Add(s.options.NegotiationTimeout)
	s.deadline(h.until)
	h.out = binary.BigEndian.AppendUint64(h.out, magicInit)
	h.out = binary.BigEndian.AppendUint64(h.out, magicOption)
	h.out = binary.BigEndian.AppendUint16(h.out, flagFixedNewstyle|flagNoZeroes)
	if err := h.flush(); err != nil {
		return err
	}
	b, err := s.in.need(4)
	if err != nil {
		return err
	}
	flags := binary.BigEndian.Uint32(b)
	if flags&^(flagFixedNewstyle|flagNoZeroes) != 0 {
		return garbage{fmt.Sprintf("client flags are %#x", flags)}
	}
	h.fixed, h.noZeroes = flags&flagFixedNewstyle != 0, flags&flagNoZeroes != 0
	for h.device == nil {
		if err := h.option(); err != nil {
			return err
		}
	}
	s.deadline(time.Time{})
	return nil
}

// option reads and answers one option.
func (h *handshake) option() error {
	in := h.session.in
	b, err := in.need(optionHeaderSize)
	if err != nil {
		return err
	}
	if magic := binary.BigEndian.Uint64(b); magic != magicOption {
		return garbage{fmt.Sprintf("option magic is %#016x", magic)}
	}
	opt, length := option(binary.BigEndian.Uint32(b[8:])), binary.BigEndian.Uint32(b[12:])
	if !h.fixed && opt != optExportName {
		return garbage{fmt.Sprintf("option %d without fixed newstyle", opt)}
	}
	if length > maxOptionBytes {
		return h.oversized(opt, length)
	}
	data, err := in.need(int(length))
	if err != nil {
		return unexpected(err)
	}
	switch opt {
	case optExportName:
		return h.exportName(string(data))
	case optAbort:
		h.reply(opt, repAck, nil)
		h.flush() // the client may be gone already
		return errAbort
	case optList:
		h.list(len(data))
	case optInfo:
		h.info(data)
	case optGo:
		return h.goOption(data)
	default:
		h.fail(opt, repErrUnsup, "")
	}
	return h.flush()
}

// oversized keeps in step with a client that sends more option data than makes sense, up to a limit.
func (h *handshake) oversized(opt option, length uint32) error {
	if length > maxOptionDropBytes || opt == optExportName {
		return garbage{fmt.Sprintf("option %d with %d bytes", opt, length)}
	}
	if err := h.session.in.drop(int(length)); err != nil {
		return err
	}
	switch opt {
	case optAbort, optList, optInfo, optGo:
		h.fail(opt, repErrTooBig, fmt.Sprintf("option data is longer than %d bytes", maxOptionBytes))
	default:
		h.fail(opt, repErrUnsup, "")
	}
	return h.flush()
}

// exportName is the old way in. It has no error reply: a refusal closes the connection.
func (h *handshake) exportName(name string) error {
	if why := badName(name); why != "" {
		return garbage{why}
	}
	if err := h.open(name); err != nil {
		return fmt.Errorf("export %q refused: %w", name, err)
	}
	h.out = binary.BigEndian.AppendUint64(h.out, h.size)
	h.out = binary.BigEndian.AppendUint16(h.out, transmissionFlags(h.readOnly))
	if !h.noZeroes {
		h.out = append(h.out, make([]byte, 124)...)
	}
	return h.enter()
}

// goOption opens the export and, if that worked, ends the negotiation.
func (h *handshake) goOption(data []byte) error {
	name, wanted, why := decodeInfoRequest(data)
	if why != "" {
		h.fail(optGo, repErrInvalid, why)
		return h.flush()
	}
	if err := h.open(name); err != nil {
		h.session.log.Info("nbd: export refused", "export", name, "error", err)
		h.fail(optGo, optionErrorOf(fault.KindOf(err)), err.Error())
		return h.flush()
	}
	h.describe(optGo, block.Info{Name: name, Size: h.size, ReadOnly: h.readOnly}, wanted)
	return h.enter()
}

// enter sends the last reply of the negotiation; when that fails, the opening is given back here.
func (h *handshake) enter() error {
	err := h.flush()
	if err != nil {
		err = errors.Join(err, h.device.Close())
		h.device = nil
	}
	return err
}

// open asks for the device, which may attach a volume.
func (h *handshake) open(name string) error {
	ctx, done := h.asking()
	device, err := h.session.options.Opener.Open(ctx, name)
	done()
	if err != nil {
		return err
	}
	h.device, h.export = device, name
	h.size, h.readOnly = usableSize(device.Size()), device.ReadOnly()
	return nil
}

// asking bounds a question to the opener. Its time is ours and is added to the client's.
func (h *handshake) asking() (context.Context, func()) {
	s := h.session
	start := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, s.options.OpenTimeout)
	return ctx, func() {
		cancel()
		h.until = h.until.Add(time.Since(start))
		s.deadline(h.until)
	}
}

func (h *handshake) list(dataBytes int) {
	if dataBytes != 0 {
		h.fail(optList, repErrInvalid, "a list request carries no data")
		return
	}
	ctx, done := h.asking()
	infos, err := h.session.options.Opener.List(ctx)
	done()
	if err != nil {
		h.fail(optList, optionErrorOf(fault.KindOf(err)), err.Error())
		return
	}
	for _, info := range infos {
		if badName(info.Name) != "" {
			continue // cannot be said in this protocol
		}
		h.out = appendOptionReply(h.out, optList, repServer, 4+len(info.Name))
		h.out = binary.BigEndian.AppendUint32(h.out, uint32(len(info.Name)))
		h.out = append(h.out, info.Name...)
		if len(h.out) >= handshakeWriteBytes && h.flush() != nil {
			return // the next flush fails as well
		}
	}
	h.reply(optList, repAck, nil)
}

func (h *handshake) info(data []byte) {
	name, wanted, why := decodeInfoRequest(data)
	if why != "" {
		h.fail(optInfo, repErrInvalid, why)
		return
	}
	ctx, done := h.asking()
	info, err := h.session.options.Opener.Info(ctx, name)
	done()
	if err != nil {
		h.fail(optInfo, optionErrorOf(fault.KindOf(err)), err.Error())
		return
	}
	info.Size = usableSize(info.Size)
	h.describe(optInfo, info, wanted)
}

// describe answers GO and INFO. Block sizes are sent asked or not: a client that ignores them gets EINVAL for
// unaligned requests, one that reads them never does.
func (h *handshake) describe(opt option, info block.Info, wanted map[infoType]bool) {
	b := binary.BigEndian.AppendUint16(nil, uint16(infoExport))
	b = binary.BigEndian.AppendUint64(b, info.Size)
	h.reply(opt, repInfo, binary.BigEndian.AppendUint16(b, transmissionFlags(info.ReadOnly)))
	if wanted[infoName] && badName(info.Name) == "" {
		h.reply(opt, repInfo, append([]byte{0, byte(infoName)}, info.Name...))
	}
	if wanted[infoDescription] {
		h.reply(opt, repInfo, append([]byte{0, byte(infoDescription)}, description(info)...))
	}
	b = binary.BigEndian.AppendUint16(nil, uint16(infoBlockSize))
	for _, size := range []uint32{minBlockBytes, preferredBlockBytes, maxPayloadBytes} {
		b = binary.BigEndian.AppendUint32(b, size)
	}
	h.reply(opt, repInfo, b)
	h.reply(opt, repAck, nil)
}

func description(info block.Info) string {
	text := fmt.Sprintf("volume of %d bytes", info.Size)
	if info.ReadOnly {
		text += ", read-only"
	}
	return text
}

// transmissionFlags is what an export can do. See the package comment for CAN_MULTI_CONN.
func transmissionFlags(readOnly bool) uint16 {
	flags := FlagHasFlags | FlagSendFlush | FlagSendFUA | FlagSendTrim | FlagSendWriteZeroes | FlagCanMultiConn
	if readOnly {
		flags |= FlagReadOnly
	}
	return flags
}

// decodeInfoRequest reads the data of GO and INFO: length of the name, name, count, that many types. why says
// what is wrong with it.
func decodeInfoRequest(data []byte) (name string, wanted map[infoType]bool, why string) {
	if len(data) < 6 {
		return "", nil, "the request is too short"
	}
	n := binary.BigEndian.Uint32(data)
	if uint64(n) > uint64(len(data)-6) {
		return "", nil, "the name is longer than the request"
	}
	name, data = string(data[4:4+n]), data[4+n:]
	if why := badName(name); why != "" {
		return "", nil, why
	}
	count := binary.BigEndian.Uint16(data)
	if data = data[2:]; len(data) != 2*int(count) {
		return "", nil, "the list of information types has a wrong length"
	}
	wanted = make(map[infoType]bool)
	for ; len(data) > 0; data = data[2:] {
		wanted[infoType(binary.BigEndian.Uint16(data))] = true
	}
	return name, wanted, ""
}

// badName says what is wrong with an export's name; any other name is the opener's to judge.
func badName(name string) string {
	switch {
	case len(name) > maxStringBytes:
		return fmt.Sprintf("the export name is longer than %d bytes", maxStringBytes)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return "the export name is not UTF-8 text"
	}
	return ""
}

func (h *handshake) reply(opt option, kind optionReply, data []byte) {
	h.out = appendOptionReply(h.out, opt, kind, len(data))
	h.out = append(h.out, data...)
}

// fail sends an error reply. The text is for a person: the refusal of a busy volume names its holder.
func (h *handshake) fail(opt option, kind optionReply, text string) {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
	if len(text) > maxStringBytes {
		text = strings.ToValidUTF8(text[:maxStringBytes], "") // may have cut through a rune
	}
	h.reply(opt, kind, []byte(text))
}

func (h *handshake) flush() error {
	if len(h.out) == 0 {
		return nil
	}
	_, err := h.session.conn.Write(h.out)
	h.out = h.out[:0]
	return err
}

// unexpected turns the end of the stream into what it is in the middle of a message.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return garbage{"the connection ended in the middle of an option"}
	}
	return err
}
