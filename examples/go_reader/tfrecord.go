package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

const maxRecordBytes = 1 << 30

// readTFRecord calls f with every record of a TFRecord file.
func readTFRecord(path string, f func(position int, record []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	from := bufio.NewReaderSize(file, 1<<20)
	for position := 0; ; position++ {
		head := make([]byte, 12)
		if _, err := io.ReadFull(from, head); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("record %d: %w", position, err)
		}
		size := binary.LittleEndian.Uint64(head)
		if binary.LittleEndian.Uint32(head[8:]) != maskedCRC(head[:8]) || size > maxRecordBytes {
			return fmt.Errorf("record %d: its length is damaged", position)
		}
		record := make([]byte, size+4)
		if _, err := io.ReadFull(from, record); err != nil {
			return fmt.Errorf("record %d is cut: %w", position, err)
		}
		if binary.LittleEndian.Uint32(record[size:]) != maskedCRC(record[:size]) {
			return fmt.Errorf("record %d is damaged", position)
		}
		if err := f(position, record[:size]); err != nil {
			return fmt.Errorf("record %d: %w", position, err)
		}
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func maskedCRC(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xA282EAD8
}
