package nbd

import "encoding/binary"

// Numbers of the protocol, as in doc/proto.md of the NetworkBlockDevice project. All integers are big-endian.
const (
	magicInit        uint64 = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption      uint64 = 0x49484156454f5054 // "IHAVEOPT"
	magicOldstyle    uint64 = 0x00420281861253
	magicOptionReply uint64 = 0x3e889045565a9
	magicRequest     uint32 = 0x25609513
	magicReply       uint32 = 0x67446698
)

// Handshake flags, the same bits from the server (16 bits) and from the client (32 bits).
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// option is what a client asks for while negotiating.
type option uint32

const (
	optExportName option = 1
	optAbort      option = 2
	optList       option = 3
	optInfo       option = 6
	optGo         option = 7
)

// optionReply is the type of an answer to an option; bit 31 marks an error.
type optionReply uint32

const (
	repAck          optionReply = 1
	repServer       optionReply = 2
	repInfo         optionReply = 3
	repError        optionReply = 1 << 31
	repErrUnsup     optionReply = repError + 1
	repErrPolicy    optionReply = repError + 2
	repErrInvalid   optionReply = repError + 3
	repErrPlatform  optionReply = repError + 4
	repErrTLSReqd   optionReply = repError + 5
	repErrUnknown   optionReply = repError + 6
	repErrShutdown  optionReply = repError + 7
	repErrBlockSize optionReply = repError + 8
	repErrTooBig    optionReply = repError + 9
)

// infoType is what a piece of NBD_REP_INFO tells.
type infoType uint16

const (
	infoExport      infoType = 0
	infoName        infoType = 1
	infoDescription infoType = 2
	infoBlockSize   infoType = 3
)

// Transmission flags: what an export can do.
const (
	FlagHasFlags        uint16 = 1 << 0
	FlagReadOnly        uint16 = 1 << 1
	FlagSendFlush       uint16 = 1 << 2
	FlagSendFUA         uint16 = 1 << 3
	FlagRotational      uint16 = 1 << 4
	FlagSendTrim        uint16 = 1 << 5
	FlagSendWriteZeroes uint16 = 1 << 6
	FlagSendDF          uint16 = 1 << 7
	FlagCanMultiConn    uint16 = 1 << 8
)

// command is the type of a request while transmitting.
type command uint16

const (
	cmdRead        command = 0
	cmdWrite       command = 1
	cmdDisc        command = 2
	cmdFlush       command = 3
	cmdTrim        command = 4
	cmdWriteZeroes command = 6
)

// Command flags.
const (
	cmdFlagFUA    uint16 = 1 << 0
	cmdFlagNoHole uint16 = 1 << 1
)

// Limits. Those of the protocol are in bytes of a string; the rest are this package's own.
const (
	minBlockBytes       = 512
	preferredBlockBytes = 4096
	maxPayloadBytes     = 32 << 20
	maxDropBytes        = 64 << 20 // a refused write's payload up to here is read and dropped; beyond, the session ends
	maxStringBytes      = 4096
	maxOptionBytes      = 16 << 10 // a longer option is dropped and answered with TOO_BIG
	maxOptionDropBytes  = 1 << 20  // a longer one ends the session
	maxOptionReplyBytes = 32 << 10 // what the client takes from a server
)

// Sizes of the fixed headers in bytes.
const (
	optionHeaderSize = 16 // magic, option, length
	replyHeaderSize  = 20 // magic, option, type, length
	requestSize      = 28 // magic, flags, command, cookie, offset, length
	replySize        = 16 // magic, error, cookie
)

// request is a decoded request header.
type request struct {
	magic  uint32
	flags  uint16
	kind   command
	cookie uint64
	offset uint64
	length uint32
}

func decodeRequest(b []byte) request {
	_ = b[requestSize-1]
	return request{
		magic:  binary.BigEndian.Uint32(b),
		flags:  binary.BigEndian.Uint16(b[4:]),
		kind:   command(binary.BigEndian.Uint16(b[6:])),
		cookie: binary.BigEndian.Uint64(b[8:]),
		offset: binary.BigEndian.Uint64(b[16:]),
		length: binary.BigEndian.Uint32(b[24:]),
	}
}

func encodeRequest(b []byte, r request) {
	_ = b[requestSize-1]
	binary.BigEndian.PutUint32(b, magicRequest)
	binary.BigEndian.PutUint16(b[4:], r.flags)
	binary.BigEndian.PutUint16(b[6:], uint16(r.kind))
	binary.BigEndian.PutUint64(b[8:], r.cookie)
	binary.BigEndian.PutUint64(b[16:], r.offset)
	binary.BigEndian.PutUint32(b[24:], r.length)
}

func encodeReply(b []byte, code errno, cookie uint64) {
	_ = b[replySize-1]
	binary.BigEndian.PutUint32(b, magicReply)
	binary.BigEndian.PutUint32(b[4:], uint32(code))
	binary.BigEndian.PutUint64(b[8:], cookie)
}

// appendOption appends an option header, as a client sends it.
func appendOption(b []byte, opt option, length int) []byte {
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint32(b, uint32(opt))
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

// appendOptionReply appends the header of an answer to an option, as a server sends it.
func appendOptionReply(b []byte, opt option, kind optionReply, length int) []byte {
	b = binary.BigEndian.AppendUint64(b, magicOptionReply)
	b = binary.BigEndian.AppendUint32(b, uint32(opt))
	b = binary.BigEndian.AppendUint32(b, uint32(kind))
	return binary.BigEndian.AppendUint32(b, uint32(length))
}
