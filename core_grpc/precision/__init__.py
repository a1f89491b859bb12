"""Models in fewer bits: conversion of an ONNX file to another precision."""
